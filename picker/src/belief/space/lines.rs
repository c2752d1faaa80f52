//! Which lines of a space are free.

use super::{Line, NOWHERE, Room, Space};

/// Lines that were never used, and those that were given back. The writer's own.
#[derive(Debug)]
pub(in crate::belief) struct Lines {
    /// The first line never used, and how many there are.
    fresh: usize,
    count: usize,
    /// The last one given back; each refers to the one before.
    given: Line,
    given_count: usize,
}

impl Lines {
    pub(in crate::belief) fn new(room: Room) -> Self {
        Self { fresh: 1, count: room.lines, given: NOWHERE, given_count: 0 }
    }

    pub(in crate::belief) fn grow(&mut self, room: Room) {
        self.count = room.lines;
    }

    /// Lines that were ever in use, the first among them.
    pub(in crate::belief) fn used(&self) -> usize {
        self.fresh
    }

    /// Lines in use now.
    pub(in crate::belief) fn taken(&self) -> usize {
        self.fresh - self.given_count
    }

    pub(in crate::belief) fn give(&mut self, space: &Space, line: Line) {
        space.store(line, 0, u64::from(self.given));
        self.given = line;
        self.given_count += 1;
    }

    /// A line with anything in it. `None` cannot be, by the arithmetic of [`Room::of`]; then nothing is recorded.
    pub(in crate::belief) fn take(&mut self, space: &Space) -> Option<Line> {
        if self.given != NOWHERE {
            let line = self.given;
            self.given = space.load(line, 0) as Line;
            self.given_count -= 1;
            return Some(line);
        }
        let line = Line::try_from(self.fresh).ok().filter(|_| self.fresh < self.count)?;
        self.fresh += 1;
        Some(line)
    }
}
