//! Pages of Prometheus' text format: one reader for all of this crate that looks at engines' counters.
//!
//! A page comes from a server or from somebody's disk, so nothing in it is trusted: a line that is no sample is kept
//! count of and passed over. Format: Prometheus' text exposition format 0.0.4, which vLLM's version 1.0.0 keeps to.

/// The samples of a page, and what of it could not be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page<'a> {
    /// In the order of the page.
    pub samples: Vec<Sample<'a>>,
    /// Lines that are neither empty, nor comments, nor samples.
    pub bad_lines: usize,
    /// The first of them, as `line N: found "..."`.
    pub first_bad: Option<String>,
}

/// One sample of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// What stands between the braces; empty without any.
    labels: &'a str,
    /// Can be infinite or no number, as the format allows.
    pub value: f64,
}

/// Characters of a bad line that are shown.
const SHOWN_CHARS_MAX: usize = 40;

impl<'a> Page<'a> {
    /// Reads a page. O(bytes).
    pub fn parse(text: &'a str) -> Self {
        let mut page = Self::default();
        for (number, line) in (1..).zip(text.lines()).map(|(number, line)| (number, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match sample(line) {
                Some(sample) => page.samples.push(sample),
                None => page.keep_bad(number, line),
            }
        }
        page
    }

    fn keep_bad(&mut self, number: usize, line: &str) {
        self.bad_lines += 1;
        self.first_bad.get_or_insert_with(|| {
            let shown: String = line.chars().take(SHOWN_CHARS_MAX).collect();
            format!("line {number}: found {shown:?}")
        });
    }

    /// All samples of a metric.
    pub fn of(&self, name: &str) -> impl Iterator<Item = &Sample<'a>> {
        self.samples.iter().filter(move |sample| sample.name == name)
    }

    /// The sum of a metric's finite samples; `None` where there is none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let values = self.of(name).map(|sample| sample.value).filter(|value| value.is_finite());
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }
}

impl Sample<'_> {
    /// The value of a label; `None` without that label.
    pub fn label(&self, name: &str) -> Option<String> {
        let mut rest = self.labels;
        while let Some((found, after)) = rest.split_once('=') {
            let (value, after) = quoted(after.trim_start())?;
            if found.trim() == name {
                return Some(value);
            }
            rest = after.trim_start().trim_start_matches(',');
        }
        None
    }
}

/// A line as name, labels, value, and perhaps a time.
fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(|letter: char| letter == '{' || letter.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.trim_start().strip_prefix('{') {
        Some(rest) => split_labels(rest)?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let value = words.next()?.parse().ok()?;
    let time_is_number = words.next().is_none_or(|time| time.parse::<f64>().is_ok());
    let whole = is_name(name) && time_is_number && words.next().is_none();
    whole.then_some(Sample { name, labels, value })
}

fn is_name(name: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    !name.is_empty() && name.chars().all(letter) && !name.starts_with(|first: char| first.is_ascii_digit())
}

/// What stands before the closing brace, and after it; braces within quotes do not count.
fn split_labels(text: &str) -> Option<(&str, &str)> {
    let (mut quoted, mut escaped) = (false, false);
    for (place, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '}' if !quoted => return Some((&text[..place], &text[place + 1..])),
            _ => (),
        }
    }
    None
}

/// A text in quotes without its escapes, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('"')?;
    let (mut value, mut escaped) = (String::new(), false);
    for (place, letter) in text.char_indices() {
        match letter {
            'n' if escaped => value.push('\n'),
            _ if escaped => value.push(letter),
            '\\' => (),
            '"' => return Some((value, &text[place + 1..])),
            _ => value.push(letter),
        }
        escaped = letter == '\\' && !escaped;
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn samples_of_every_spelling() {
        for (line, name, value) in [
            ("a:b_total 3", "a:b_total", 3.0),
            ("a{} 1.5e+04", "a", 15_000.0),
            ("a{x=\"}\",y=\"\\\"{\"}\t7 1700000000", "a", 7.0),
            ("a {x=\"1\"} +Inf", "a", f64::INFINITY),
        ] {
            let page = Page::parse(line);
            let found: Vec<_> = page.samples.iter().map(|sample| (sample.name, sample.value)).collect();
            assert_eq!((found, page.bad_lines), (vec![(name, value)], 0), "{line}");
        }
    }

    #[test]
    fn what_is_no_sample_is_counted_and_the_first_is_shown() {
        let text = "# HELP a b\n\na 1\n<html>\na{x=\"1 2\n1a 3\na one\na 1 2 3\na 1 x\n";
        let page = Page::parse(text);
        assert_eq!((page.samples.len(), page.bad_lines), (1, 6));
        assert_eq!(page.first_bad.as_deref(), Some("line 4: found \"<html>\""));
    }

    #[test]
    fn labels_are_found_and_unescaped() {
        let page = Page::parse("a{xx=\"no\", x=\"a\\\\\\\"b\\n,=\", y=\"2\",} 1");
        let sample = page.samples[0];
        assert_eq!(sample.label("x").unwrap(), "a\\\"b\n,=");
        assert_eq!((sample.label("y").as_deref(), sample.label("z")), (Some("2"), None));
    }

    #[test]
    fn sums_are_of_finite_samples_of_that_very_name() {
        let page = Page::parse("a{e=\"0\"} 1\na{e=\"1\"} 2\na NaN\na_total 9\nb NaN\n");
        assert_eq!((page.sum("a"), page.sum("b"), page.sum("c")), (Some(3.0), None, None));
    }
}
