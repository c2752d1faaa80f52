//! Atomics as the standard library has them, or as loom does where a model runs.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// That many zeros. Pages of it cost memory when they are first written. `None`: there is no such room.
#[cfg(not(loom))]
pub(super) fn zeros(count: usize) -> Option<Box<[AtomicU64]>> {
    bytemuck::allocation::try_zeroed_slice_box(count).ok()
}

#[cfg(loom)]
pub(super) fn zeros(count: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..count).map(|_| AtomicU64::new(0)).collect())
}
