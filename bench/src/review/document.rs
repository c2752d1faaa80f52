//! A review as a document, and its two faces: plain text for a terminal, Markdown for a ticket.

use crate::table::format_lines;

/// A part under one head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) head: String,
    pub(super) blocks: Vec<Block>,
}

/// A piece of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Sentences, each on a line of its own.
    Lines(Vec<String>),
    /// The head first; every line as long as it.
    Table(Vec<Vec<String>>),
}

impl Section {
    pub(super) fn new(head: &str) -> Self {
        Self { head: head.to_owned(), blocks: Vec::new() }
    }

    pub(super) fn line(mut self, line: impl Into<String>) -> Self {
        let line = line.into();
        match self.blocks.last_mut() {
            Some(Block::Lines(lines)) => lines.push(line),
            _ => self.blocks.push(Block::Lines(vec![line])),
        }
        self
    }

    pub(super) fn lines(self, lines: impl IntoIterator<Item = String>) -> Self {
        lines.into_iter().fold(self, Self::line)
    }

    pub(super) fn table(mut self, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        self.blocks.push(Block::Table(std::iter::once(head).chain(rows).collect()));
        self
    }
}

/// For a terminal.
pub(super) fn text(title: &str, sections: &[Section]) -> String {
    let section = |section: &Section| {
        let blocks: Vec<_> = section.blocks.iter().map(text_block).collect();
        format!("\n{}\n{}", section.head, blocks.join("\n"))
    };
    format!("{title}\n{}", sections.iter().map(section).collect::<String>())
}

fn text_block(block: &Block) -> String {
    let lines = match block {
        Block::Lines(lines) => lines.clone(),
        Block::Table(rows) => format_lines(rows).lines().map(str::to_owned).collect(),
    };
    lines.iter().map(|line| format!("  {}\n", line.trim_end())).collect()
}

/// For a ticket.
pub(super) fn markdown(title: &str, sections: &[Section]) -> String {
    let section = |section: &Section| {
        let blocks: Vec<_> = section.blocks.iter().map(markdown_block).collect();
        format!("\n## {}\n\n{}", section.head, blocks.join("\n"))
    };
    format!("# {title}\n{}", sections.iter().map(section).collect::<String>())
}

fn markdown_block(block: &Block) -> String {
    match block {
        Block::Lines(lines) => lines.iter().map(|line| format!("- {}\n", escaped(line))).collect(),
        Block::Table(rows) => {
            let row = |cells: &Vec<String>| {
                let cells: Vec<_> = cells.iter().map(|cell| escaped(cell).replace('|', "\\|")).collect();
                format!("| {} |\n", cells.join(" | "))
            };
            let columns = rows.first().map_or(0, Vec::len);
            let rule = format!("|---|{}\n", "---:|".repeat(columns.saturating_sub(1)));
            let mut rows = rows.iter().map(row);
            rows.next().unwrap_or_default() + &rule + &rows.collect::<String>()
        }
    }
}

/// What Markdown would read as markup; names of files and hosts are somebody else's.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, letter| {
        if matches!(letter, '*' | '_' | '<' | '>' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(letter);
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_document_has_two_faces() {
        let rows = vec![vec!["a_1".to_owned(), "5".to_owned()], vec!["b|".to_owned(), "16".to_owned()]];
        let sections = [Section::new("Head").line("one").line("<two>").table(&["name", "n"], rows)];
        assert_eq!(
            text("Title", &sections),
            "Title\n\nHead\n  one\n  <two>\n\n  name    n\n  a_1     5\n  b|     16\n"
        );
        assert_eq!(
            markdown("Title", &sections),
            "# Title\n\n## Head\n\n- one\n- \\<two\\>\n\n| name | n |\n|---|---:|\n| a\\_1 | 5 |\n| b\\| | 16 |\n"
        );
    }
}
