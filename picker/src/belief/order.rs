//! In which order an endpoint's blocks were last used, without a node per block.
//!
//! A commit uses a whole prompt from its root, so what it touched in a run is one *stretch*, and a later commit can
//! only take over the head of it. An endpoint's stretches form one list: of older commits first, and of one
//! commit the deepest first. Read from the old end, and each stretch from its tail, that is the exact least recently used
//! order of the blocks with the tail of a prompt first. Within a run, deeper stretches are older.

/// Refers to a stretch; `NONE` to none.
pub(super) type Place = u32;
pub(super) const NONE: Place = Place::MAX;

/// Blocks of one run that one endpoint last used together: from `from` to where the next deeper stretch begins, or
/// to the endpoint's cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// Line of the run's record.
    pub(super) run: u32,
    pub(super) from: u32,
    /// Blocks from here on were added by the commit that touched the stretch last.
    pub(super) added_from: u32,
    /// The commit that touched the stretch last.
    pub(super) commit: u32,
    /// The stretch before it in the same run, `NONE` at the run's start.
    pub(super) shallower: Place,
    newer: Place,
    older: Place,
}

/// An endpoint's list: its ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    newest: Place,
    oldest: Place,
    count: usize,
}

impl List {
    pub(super) const EMPTY: Self = Self { newest: NONE, oldest: NONE, count: 0 };

    /// The stretch used longest ago.
    pub(super) fn oldest(&self) -> Option<Place> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Stretches in the list.
    pub(super) fn count(&self) -> usize {
        self.count
    }
}

/// The stretches of a shard's endpoints.
#[derive(Debug, Default)]
pub(super) struct Stretches {
    all: Vec<Stretch>,
    free: Vec<Place>,
}

/// Bytes that a stretch costs.
pub(super) const STRETCH_BYTES: usize = size_of::<Stretch>() + size_of::<Place>();

impl Stretches {
    /// A stretch from its run's start, in no list yet.
    pub(super) fn add(&mut self, run: u32, commit: u32) -> Place {
        let stretch =
            Stretch { run, from: 0, added_from: 0, commit, shallower: NONE, newer: NONE, older: NONE };
        match self.free.pop() {
            Some(place) => {
                self.all[place as usize] = stretch;
                place
            }
            None => {
                self.all.push(stretch);
                (self.all.len() - 1) as Place
            }
        }
    }

    /// Gives up a stretch that is in no list.
    pub(super) fn remove(&mut self, place: Place) {
        self.free.push(place);
    }

    pub(super) fn at(&mut self, place: Place) -> &mut Stretch {
        &mut self.all[place as usize]
    }

    /// Puts a stretch at the new end.
    pub(super) fn link(&mut self, list: &mut List, place: Place) {
        let before = list.newest;
        let stretch = self.at(place);
        (stretch.newer, stretch.older) = (NONE, before);
        match before {
            NONE => list.oldest = place,
            before => self.at(before).newer = place,
        }
        list.newest = place;
        list.count += 1;
    }

    /// Takes a stretch out of the list.
    pub(super) fn unlink(&mut self, list: &mut List, place: Place) {
        let Stretch { newer, older, .. } = *self.at(place);
        match newer {
            NONE => list.newest = older,
            newer => self.at(newer).older = older,
        }
        match older {
            NONE => list.oldest = newer,
            older => self.at(older).newer = newer,
        }
        list.count -= 1;
    }

    /// Makes room for that many in all. `None`: the system has no such memory.
    pub(super) fn reserve(&mut self, count: usize) -> Option<()> {
        if self.all.is_empty() {
            // Room that was never used is not worth a copy.
            *self = Self::default();
        }
        self.all.try_reserve_exact(count.saturating_sub(self.all.len())).ok()?;
        self.free.try_reserve_exact(count.saturating_sub(self.free.len())).ok()
    }

    /// Stretches that there is room for.
    pub(super) fn max(&self) -> usize {
        self.all.capacity().max(self.free.capacity())
    }

    /// Stretches in use.
    pub(super) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }
}
