//! Tables of plain text, for every command that ends in one.

/// Columns are as wide as their widest cell; the first stands to the left, all others to the right. Every row is as long as
/// `head`.
pub(crate) fn table<const COLUMNS: usize>(
    head: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> String {
    let head = Vec::from(head.map(str::to_owned));
    format_lines(&std::iter::once(head).chain(rows.into_iter().map(Vec::from)).collect::<Vec<_>>())
}

/// The same of lines of cells, the head first.
pub(crate) fn format_lines(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    lines.iter().map(|line| format_line(line, &widths)).collect()
}

fn format_line(cells: &[String], widths: &[usize]) -> String {
    let cell = |(column, (cell, width)): (usize, (&String, &usize))| {
        if column == 0 { format!("{cell:<width$}") } else { format!("   {cell:>width$}") }
    };
    cells.iter().zip(widths).enumerate().map(cell).collect::<String>() + "\n"
}
