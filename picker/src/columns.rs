//! The figures of a decision, so that it can say why: a table with a row for each candidate and a column for each reason.
//!
//! A candidate's total is the sum over the columns of weight times figure, under every policy that has columns. What ranks
//! is therefore what is shown.

use crate::score::Scorer;

/// Columns that one decision may have: a policy that sums all scorers, and one column of its own.
pub const COLUMNS_MAX: usize = Scorer::ALL.len() + 1;

/// What a column holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Column {
    /// As decisions show it.
    pub name: &'static str,
    /// What a figure counts for; negative for what speaks against a candidate. Finite.
    pub weight: f64,
}

/// Figures by column and candidate.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: [Column; COLUMNS_MAX],
    count: usize,
    rows: usize,
    /// Column by column, in the order of the candidates; `None` where a candidate is left out.
    figures: Vec<Option<f64>>,
}

impl Table {
    /// A table for so many candidates, with room for so many columns.
    pub(crate) fn new(rows: usize, columns: usize) -> Self {
        let figures = Vec::with_capacity(rows * columns.min(COLUMNS_MAX));
        Self { rows, figures, ..Self::default() }
    }

    /// Adds a column, all `None`, and gives its figures. Past [`COLUMNS_MAX`] there is no place: it gives none.
    pub(crate) fn add(&mut self, name: &'static str, weight: f64) -> &mut [Option<f64>] {
        let Some(column) = self.columns.get_mut(self.count) else { return &mut [] };
        *column = Column { name, weight };
        self.count += 1;
        let start = self.figures.len();
        self.figures.resize(start + self.rows, None);
        &mut self.figures[start..]
    }

    /// Adds a column with a figure for each candidate.
    pub(crate) fn fill(&mut self, name: &'static str, weight: f64, figures: impl Iterator<Item = f64>) {
        for (place, figure) in self.add(name, weight).iter_mut().zip(figures) {
            *place = Some(figure);
        }
    }

    /// The columns, in the order in which they were added.
    pub fn columns(&self) -> &[Column] {
        &self.columns[..self.count]
    }

    /// Each column with its figures.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Column, &[Option<f64>])> {
        self.columns().iter().zip(self.figures.chunks_exact(self.rows.max(1)))
    }

    /// The figures of the candidate at a place, in the order of the columns; `None` where it was left out.
    pub fn row(&self, candidate: usize) -> impl Iterator<Item = Option<f64>> {
        self.iter().filter_map(move |(_, figures)| figures.get(candidate).copied())
    }
}
