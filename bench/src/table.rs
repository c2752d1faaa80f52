//! Tables of plain text, for every command that ends in one.

/// Columns are as wide as their widest cell; the first stands to the left, all others to the right. Every row is as long as
/// `head`.
pub(crate) fn table<const COLUMNS: usize>(
    head: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> String {
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows);
    let widths: [usize; COLUMNS] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0));
    lines.iter().map(|line| format_line(line, &widths)).collect()
}

fn format_line(cells: &[String], widths: &[usize]) -> String {
    let cell = |(column, (cell, width)): (usize, (&String, &usize))| {
        if column == 0 { format!("{cell:<width$}") } else { format!("   {cell:>width$}") }
    };
    cells.iter().zip(widths).enumerate().map(cell).collect::<String>() + "\n"
}
