//! Families of metrics whose series come and go: a line for each endpoint or tenant that is there now.
//!
//! Not through the recorder, which keeps a series for good.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

/// One of them at one moment.
pub(crate) struct Row<T> {
    /// As they stand between braces, such as `endpoint="a",pool="p"`. Names are safe in a label by their check.
    pub(crate) labels: String,
    pub(crate) figures: T,
}

/// A metric: its name, kind and help, and its series of one of them.
pub(super) struct Family<T> {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) help: &'static str,
    pub(super) series: Series<T>,
}

/// How many lines a family has for one of them.
pub(super) enum Series<T> {
    /// One.
    One(fn(&T) -> f64),
    /// One for each value of a further label.
    By(&'static str, &'static [&'static str], fn(&T, usize) -> f64),
}

/// A family of gauges.
pub(super) const fn gauge<T>(name: &'static str, figure: fn(&T) -> f64, help: &'static str) -> Family<T> {
    Family { name, kind: "gauge", help, series: Series::One(figure) }
}

/// A family of counters.
pub(super) const fn counter<T>(name: &'static str, figure: fn(&T) -> f64, help: &'static str) -> Family<T> {
    Family { name, kind: "counter", help, series: Series::One(figure) }
}

/// Adds families to a page.
pub(super) fn render<T>(families: &[Family<T>], rows: &[Row<T>], page: &mut String) {
    for family in families {
        // Writing to a text cannot fail.
        let _ = writeln!(page, "# HELP {} {}", family.name, family.help);
        let _ = writeln!(page, "# TYPE {} {}", family.name, family.kind);
        rows.iter().for_each(|row| family.lines(row, page));
        page.push('\n');
    }
}

impl<T> Family<T> {
    fn lines(&self, Row { labels, figures }: &Row<T>, page: &mut String) {
        let name = self.name;
        match self.series {
            Series::One(figure) => {
                let _ = writeln!(page, "{name}{{{labels}}} {}", figure(figures));
            }
            Series::By(label, values, figure) => {
                for (place, value) in values.iter().enumerate() {
                    let figure = figure(figures, place);
                    let _ = writeln!(page, "{name}{{{labels},{label}=\"{value}\"}} {figure}");
                }
            }
        }
    }
}

impl Count {
    /// Counts on.
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// What it has come to.
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_each_family_once_and_a_line_for_each_series() {
        let families = [
            gauge("load", |of: &[f64; 2]| of[0], "Load."),
            Family {
                name: "outcomes",
                kind: "counter",
                help: "Outcomes.",
                series: Series::By("is", &["ok", "bad"], |of, place| of[place]),
            },
        ];
        let row = |name: &str, figures| Row { labels: format!("endpoint=\"{name}\""), figures };
        let mut page = String::new();
        render(&families, &[row("a", [7.0, 1.0]), row("b", [0.5, 2.0])], &mut page);
        let wanted = "# HELP load Load.\n# TYPE load gauge\nload{endpoint=\"a\"} 7\nload{endpoint=\"b\"} 0.5\n\n\
            # HELP outcomes Outcomes.\n# TYPE outcomes counter\n\
            outcomes{endpoint=\"a\",is=\"ok\"} 7\noutcomes{endpoint=\"a\",is=\"bad\"} 1\n\
            outcomes{endpoint=\"b\",is=\"ok\"} 0.5\noutcomes{endpoint=\"b\",is=\"bad\"} 2\n\n";
        assert_eq!(page, wanted);
    }
}
