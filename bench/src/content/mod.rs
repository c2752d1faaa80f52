//! What the benches feed to the picker, in one place so that criterion, the peers' comparison and the gate on instructions
//! measure the same.

pub mod blocks;
pub mod bodies;
