//! How the router ends: what a drain gives to clients, and where another process takes its listeners over.

use std::path::PathBuf;
use std::time::Duration;

use crate::Ending;
use crate::defaults::{self, DURATION_MAX};
use crate::faults::Reason;
use crate::read::form::{Durations, Text};
use crate::read::{Key, Section, live, restart};

/// None of them has to take any time.
const TIME: Durations = Durations { min: Duration::ZERO, max: DURATION_MAX };

const DRAIN: Key = live("drain", "Time that running requests get after SIGTERM; zero stops at once");
const DELAY: Key = live(
    "drain_delay",
    "Time after SIGTERM in which the router is not ready and takes connections all the same",
);
const IDLE: Key = live(
    "drain_idle",
    "Time that an unused connection of a client stays in a drain, for a request on its way; at most half of `drain`",
);
const SOCKET: Key =
    restart("upgrade_socket", "Where `serve --upgrade` takes the listeners over from a router that runs");

const WANTED_PATH: &str = "a path";
const PATH: Text<PathBuf> = Text {
    wanted: WANTED_PATH,
    pattern: "^.+$",
    read: |text| {
        let path = !text.is_empty() && !text.contains('\0');
        if path { Ok(PathBuf::from(text)) } else { Err(Reason::text(text, WANTED_PATH)) }
    },
    show: |path| path.display().to_string(),
};

pub(super) fn read(top: &mut Section<'_, '_>) -> Ending {
    let drain = top.value(DRAIN, &TIME, defaults::DRAIN).value;
    let delay = top.value(DELAY, &TIME, defaults::DRAIN_DELAY).value;
    let idle = top.value(IDLE, &TIME, defaults::DRAIN_IDLE).value;
    let socket = top.optional(SOCKET, &PATH).map(|path| path.value);
    Ending { drain, delay, idle, upgrade_socket: socket.map(|path| top.reader.in_folder(&path)) }
}
