//! Seeded chance: the same seed and the same count give the same draw, so a logged decision replays.

/// One decision's chance: the seed of the pool and the number of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The configured seed.
    pub seed: u64,
    /// How many decisions came before this one. Round-robin turns by it.
    pub turn: u64,
}

impl Draw {
    /// A number for the `nth` question of this decision, uniform over `u64`.
    pub fn number(self, nth: usize) -> u64 {
        mix(mix(self.seed ^ mix(self.turn)).wrapping_add(nth as u64))
    }
}

/// A bijection of 64 bits whose output looks random: SplitMix64's step and finaliser (Steele, Lea and Flood, 2014).
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}
