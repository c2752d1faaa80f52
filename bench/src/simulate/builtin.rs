//! The flags of the workload that is built in.

use crate::demo3::{self, OptionsError, Variant};

/// The second lesson's demo: conversations over replicas that cache whole conversations.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Demo3Args {
    /// Play 500 conversations on replicas that cache whole conversations; flags of the fleet then default to that lesson's
    #[arg(
        long,
        value_name = "VARIANT",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "keyed",
        help_heading = "Built-in workload"
    )]
    pub demo3: Option<Variant>,
    /// Its requests
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20_000,
        requires = "demo3",
        help_heading = "Built-in workload"
    )]
    pub demo3_requests: usize,
    /// Its conversations
    #[arg(
        long,
        value_name = "N",
        default_value_t = 500,
        requires = "demo3",
        help_heading = "Built-in workload"
    )]
    pub demo3_conversations: u32,
    /// How uneven they are; 0: all alike
    #[arg(
        long,
        value_name = "F",
        default_value_t = 1.0,
        requires = "demo3",
        allow_negative_numbers = true,
        help_heading = "Built-in workload"
    )]
    pub demo3_skew: f64,
    /// Its requests per second
    #[arg(
        long,
        value_name = "R",
        default_value_t = 130.0,
        requires = "demo3",
        allow_negative_numbers = true,
        help_heading = "Built-in workload"
    )]
    pub demo3_rate: f64,
    /// Its seed
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "demo3",
        help_heading = "Built-in workload"
    )]
    pub demo3_seed: u64,
}

impl Demo3Args {
    /// The workload, if it was asked for. Errors: a flag without a meaning.
    pub(super) fn workload(&self) -> Result<Option<demo3::Workload>, OptionsError> {
        let options = |variant| demo3::Options {
            variant,
            requests: self.demo3_requests,
            conversations: self.demo3_conversations,
            skew: self.demo3_skew,
            rate: self.demo3_rate,
            seed: self.demo3_seed,
        };
        self.demo3.map(|variant| demo3::Workload::new(options(variant))).transpose()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Demo3Args,
    }

    fn turns(flags: &str) -> Option<Vec<demo3::Turn>> {
        let words = ["simulate"].into_iter().chain(flags.split_whitespace());
        let workload = Command::try_parse_from(words).unwrap().args.workload().unwrap()?;
        Some(workload.turns().to_vec())
    }

    #[test]
    fn flags_are_the_options_of_the_workload() {
        let of = |options| Some(demo3::Workload::new(options).unwrap().turns().to_vec());
        assert_eq!(turns(""), None);
        assert_eq!(turns("--demo3"), of(demo3::Options::default()));
        let flags = "--demo3=new-text --demo3-requests 50 --demo3-conversations 7 --demo3-skew 0 --demo3-rate 9 --demo3-seed 4";
        let variant = Variant::NewText;
        let options =
            demo3::Options { variant, requests: 50, conversations: 7, skew: 0.0, rate: 9.0, seed: 4 };
        assert_eq!(turns(flags), of(options));
        for flags in ["--demo3-seed 4", "--demo3=other"] {
            let words = ["simulate"].into_iter().chain(flags.split(' '));
            assert!(Command::try_parse_from(words).is_err(), "{flags}");
        }
    }
}
