//! What the one writer does to a space. What readers can reach is only changed within `version.change`, here or at the caller's.

use super::{
    BlockHash, FAN_BITS, HASHES_BITS, Holder, INLINE, INLINE_AT, Line, Lines, MORE_AT, Ordering, PER_LINE,
    ROOTS, ROOTS_AT, Run, START_AT, Space, WORDS,
};

impl Space {
    pub(super) fn store(&self, line: Line, word: usize, value: u64) {
        if let Some(word) = self.words.get(self.aligned + line as usize * WORDS + word) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn set_half(&self, line: Line, half: usize, to: Line) {
        let shift = half % 2 * 32;
        let kept = self.load(line, half / 2) & !(u64::from(u32::MAX) << shift);
        self.store(line, half / 2, kept | u64::from(to) << shift);
    }

    fn shape(&self, run: Run, length: usize, height: u32, holders: usize) {
        self.store(run.0, 0, length as u64 | u64::from(height) << 32 | (holders as u64) << 40);
    }

    /// The record of a run behind `start` blocks, without blocks or holders, which nobody can reach. `None`: there is no line.
    pub(in crate::belief) fn open(&self, start: usize, lines: &mut Lines) -> Option<Run> {
        let line = lines.take(self)?;
        (0..WORDS).for_each(|word| self.store(line, word, 0));
        self.set_half(line, START_AT, start as Line);
        Some(Run(line))
    }

    /// Says how many blocks a run has: of those that are written, or of those that it had.
    pub(in crate::belief) fn set_len(&self, run: Run, length: usize) {
        self.shape(run, length, self.height(run), self.holder_count(run));
    }

    /// Lets the run be found by its first hash.
    pub(in crate::belief) fn add_head(&self, run: Run) {
        let (home, tag) = self.place(self.hash(run, self.height(run), 0));
        let (before, from) = self.heads.split_at(home);
        let free = from.iter().chain(before).find(|head| head.load(Ordering::Relaxed) == 0);
        if let Some(head) = free {
            head.store(tag << 32 | u64::from(run.0), Ordering::Relaxed);
        }
    }

    /// Lets the run be found no more. Closes the gap, so that every probe still ends at the first free place.
    pub(in crate::belief) fn remove_head(&self, run: Run) {
        let count = self.heads.len();
        let (home, tag) = self.place(self.hash(run, self.height(run), 0));
        let wanted = tag << 32 | u64::from(run.0);
        let load = |at: usize| self.heads[at].load(Ordering::Relaxed);
        let Some(mut gap) = (0..count).map(|step| (home + step) % count).find(|&at| load(at) == wanted)
        else {
            return;
        };
        let mut at = gap;
        loop {
            at = (at + 1) % count;
            let head = load(at);
            if head == 0 || at == gap {
                break;
            }
            let moved = Run(head as Line);
            let (home, _) = self.place(self.hash(moved, self.height(moved), 0));
            // It may fill the gap if its own home is not behind the gap.
            if (at + count - home) % count >= (at + count - gap) % count {
                self.heads[gap].store(head, Ordering::Relaxed);
                gap = at;
            }
        }
        self.heads[gap].store(0, Ordering::Relaxed);
    }

    /// Writes blocks behind the run's end, as many as `lines` has room for, and gives the length that takes them in. Nobody
    /// sees them before that is set.
    pub(in crate::belief) fn append(&self, run: Run, hashes: &[BlockHash], lines: &mut Lines) -> usize {
        let mut length = self.len(run);
        for hash in hashes {
            if length.is_multiple_of(WORDS) && self.append_line(run, length / WORDS, lines).is_none() {
                break;
            }
            self.store(self.line_of(run, self.height(run), length >> HASHES_BITS), length % WORDS, hash.0);
            length += 1;
        }
        length
    }

    fn append_line(&self, run: Run, index: usize, lines: &mut Lines) -> Option<()> {
        if index >= ROOTS << (self.height(run) * FAN_BITS) {
            self.raise(run, lines)?;
        }
        let mut below = self.height(run) * FAN_BITS;
        let (mut line, mut half) = (run.0, ROOTS_AT + (index >> below));
        while below > 0 {
            if index.is_multiple_of(1 << below) {
                self.set_half(line, half, lines.take(self)?);
            }
            line = self.half(line, half);
            below -= FAN_BITS;
            half = (index >> below) % (1 << FAN_BITS);
        }
        self.set_half(line, half, lines.take(self)?);
        Some(())
    }

    /// One more level: what hung on the record hangs on a line below it.
    fn raise(&self, run: Run, lines: &mut Lines) -> Option<()> {
        let line = lines.take(self)?;
        for root in 0..ROOTS {
            self.set_half(line, root, self.half(run.0, ROOTS_AT + root));
        }
        self.version.change(|| {
            self.set_half(run.0, ROOTS_AT, line);
            self.shape(run, self.len(run), self.height(run) + 1, self.holder_count(run));
        });
        Some(())
    }

    /// Frees the lines of blocks that nobody can reach any more: those from `left` on of a run that had `length`, and with the
    /// last of them the run's record.
    pub(in crate::belief) fn free(&self, run: Run, length: usize, left: usize, lines: &mut Lines) {
        let kept = left.div_ceil(WORDS);
        for index in (kept..length.div_ceil(WORDS)).rev() {
            self.drop_line(run, index, lines);
        }
        if left == 0 {
            return lines.give(self, run.0);
        }
        while self.height(run) > 0 && kept <= ROOTS << ((self.height(run) - 1) * FAN_BITS) {
            self.lower(run, lines);
        }
    }

    fn drop_line(&self, run: Run, index: usize, lines: &mut Lines) {
        let mut below = self.height(run) * FAN_BITS;
        let mut line = self.half(run.0, ROOTS_AT + (index >> below));
        while below > 0 {
            let empty = index.is_multiple_of(1 << below);
            below -= FAN_BITS;
            let next = self.half(line, (index >> below) % (1 << FAN_BITS));
            if empty {
                lines.give(self, line);
            }
            line = next;
        }
        lines.give(self, line);
    }

    /// One level less, once four lines below the first are enough.
    fn lower(&self, run: Run, lines: &mut Lines) {
        let line = self.half(run.0, ROOTS_AT);
        self.version.change(|| {
            for root in 0..ROOTS {
                self.set_half(run.0, ROOTS_AT + root, self.half(line, root));
            }
            self.shape(run, self.len(run), self.height(run) - 1, self.holder_count(run));
        });
        lines.give(self, line);
    }

    /// What `slot` holds of a run.
    pub(in crate::belief) fn holder(&self, run: Run, slot: usize) -> Option<Holder> {
        self.holders(run).find(|holder| holder.slot == slot)
    }

    /// Lets a holder hold up to its cut if it holds less, or nothing.
    pub(in crate::belief) fn hold_more(&self, run: Run, holder: Holder, lines: &mut Lines) {
        if self.holder(run, holder.slot).is_none_or(|known| known.cut < holder.cut) {
            self.hold(run, holder, lines);
        }
    }

    /// Adds a holder, or changes what it holds.
    pub(in crate::belief) fn hold(&self, run: Run, holder: Holder, lines: &mut Lines) {
        let place = self.holders(run).position(|known| known.slot == holder.slot);
        let count = self.holder_count(run);
        if place.is_none() {
            if count >= INLINE
                && (count - INLINE).is_multiple_of(PER_LINE)
                && self.append_holders(run, count, lines).is_none()
            {
                return;
            }
            self.shape(run, self.len(run), self.height(run), count + 1);
        }
        let (line, word) = self.holder_at(run, place.unwrap_or(count));
        self.store(line, word, holder.pack());
    }

    /// Takes a holder away; the last one takes its place.
    pub(in crate::belief) fn release(&self, run: Run, slot: usize, lines: &mut Lines) {
        let Some(place) = self.holders(run).position(|holder| holder.slot == slot) else { return };
        let last = self.holder_count(run) - 1;
        let ((line, word), (last_line, last_word)) = (self.holder_at(run, place), self.holder_at(run, last));
        self.store(line, word, self.load(last_line, last_word));
        if last >= INLINE && (last - INLINE).is_multiple_of(PER_LINE) {
            lines.give(self, last_line);
        }
        self.shape(run, self.len(run), self.height(run), last);
    }

    fn append_holders(&self, run: Run, count: usize, lines: &mut Lines) -> Option<()> {
        let last = self.holder_at(run, count - 1).0;
        let line = lines.take(self)?;
        self.set_half(last, 2 * MORE_AT, line);
        Some(())
    }

    fn holder_at(&self, run: Run, place: usize) -> (Line, usize) {
        if place < INLINE {
            return (run.0, INLINE_AT + place);
        }
        let mut line = run.0;
        for _ in 0..=(place - INLINE) / PER_LINE {
            line = self.load(line, MORE_AT) as Line;
        }
        (line, (place - INLINE) % PER_LINE)
    }
}
