//! A number with the formula that it comes from, so that nobody has to believe it.

use serde::Serialize;

/// A number and its formula, once with names and once with the numbers put in.
///
/// Formulas are read by people: `+ - x /`, brackets, `min`, `max`, `ceil`, `floor`. A test evaluates those of
/// [`with`](Self::with) and compares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What it is called here and in the JSON.
    pub name: &'static str,
    /// In `unit`.
    pub value: f64,
    /// Empty for a plain ratio.
    pub unit: &'static str,
    /// The formula with names.
    pub formula: String,
    /// The formula with numbers.
    pub numbers: String,
}

impl Figure {
    /// A number without its formula yet.
    pub fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self { name, value, unit, formula: String::new(), numbers: String::new() }
    }

    /// With the formula in names.
    pub fn of(self, formula: impl Into<String>) -> Self {
        Self { formula: formula.into(), ..self }
    }

    /// With the formula in numbers.
    pub fn with(self, numbers: impl Into<String>) -> Self {
        Self { numbers: numbers.into(), ..self }
    }

    /// `name = formula = numbers = value unit`, in a line without its end.
    pub fn line(&self) -> String {
        let Self { name, value, unit, formula, numbers } = self;
        let plain = short(*value);
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        match *numbers == plain {
            true => format!("{name} = {formula} = {plain}{unit}"),
            false => format!("{name} = {formula} = {numbers} = {plain}{unit}"),
        }
    }
}

/// A number as short as four decimals allow.
pub(super) fn short(value: f64) -> String {
    ((value * 1e4).round() / 1e4 + 0.0).to_string()
}

/// A count in groups of three digits.
pub(super) fn grouped(count: f64) -> String {
    let digits = format!("{:.0}", count.max(0.0));
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_name_formula_numbers_and_value() {
        let figure = Figure::new("prefill_ms", 1000.0 / 3.0, "ms").of("uncached / rate").with("4000 / 12");
        assert_eq!(figure.line(), "prefill_ms = uncached / rate = 4000 / 12 = 333.3333 ms");
        let plain = Figure::new("share", 1.0, "").of("all of it").with("1");
        assert_eq!(plain.line(), "share = all of it = 1");
    }

    #[test]
    fn digits_come_in_threes() {
        for (count, want) in
            [(0.0, "0"), (999.0, "999"), (1000.0, "1,000"), (426_788.0, "426,788"), (1e6, "1,000,000")]
        {
            assert_eq!(grouped(count), want);
        }
    }
}
