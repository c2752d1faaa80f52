//! What a formula in numbers comes to: `+ - x /`, brackets, `min`, `max`, `ceil`, `floor`.

/// Evaluates; panics at what is no formula.
pub(crate) fn evaluate(formula: &str) -> f64 {
    let mut rest = Rest(formula);
    let value = rest.sum();
    assert_eq!(rest.0.trim(), "", "left of {formula:?}");
    value
}

struct Rest<'a>(&'a str);

impl Rest<'_> {
    fn takes(&mut self, token: &str) -> bool {
        let rest = self.0.trim_start();
        let taken = rest.strip_prefix(token);
        self.0 = taken.unwrap_or(rest);
        taken.is_some()
    }

    fn sum(&mut self) -> f64 {
        let mut value = self.product();
        loop {
            if self.takes("+") {
                value += self.product();
            } else if self.takes("-") {
                value -= self.product();
            } else {
                return value;
            }
        }
    }

    fn product(&mut self) -> f64 {
        let mut value = self.part();
        loop {
            if self.takes("x") {
                value *= self.part();
            } else if self.takes("/") {
                value /= self.part();
            } else {
                return value;
            }
        }
    }

    fn part(&mut self) -> f64 {
        for (name, apply) in [
            ("min(", f64::min as fn(f64, f64) -> f64),
            ("max(", f64::max),
            ("ceil(", |it, _| it.ceil()),
            ("floor(", |it, _| it.floor()),
            ("(", |it, _| it),
        ] {
            if self.takes(name) {
                let first = self.sum();
                let second = if self.takes(",") { self.sum() } else { first };
                assert!(self.takes(")"), "no bracket at {:?}", self.0);
                return apply(first, second);
            }
        }
        let end =
            self.0.find(|it: char| !it.is_ascii_digit() && it != '.' && it != 'e').unwrap_or(self.0.len());
        let (number, rest) = self.0.split_at(end);
        self.0 = rest;
        number.parse().unwrap_or_else(|_| panic!("no number at {number:?}{rest:?}"))
    }
}

#[test]
fn it_reckons() {
    for (formula, want) in [
        ("1 + 2 x 3 - 4 / 2", 5.0),
        ("(1 + 2) x 3e2", 900.0),
        ("max(1, ceil((2 + 0.1) / 2)) x min(3, 4)", 6.0),
        ("floor(7 / 2)", 3.0),
    ] {
        assert_eq!(evaluate(formula), want, "{formula}");
    }
}
