//! From the events of the YAML parser to a tree, with a budget.

use std::collections::{HashMap, HashSet};

use granit_parser::{ErrorKind, Event, Marker, Options, Parser, ScalarStyle, ScanError, Span, Tag};

use super::{At, Documents, Entry, Map, Node, Scalar, Value};
use crate::defaults::{ALIASED_BYTES_MAX, TREE_DEPTH_MAX};
use crate::faults::{Faults, Reason, key_path};

/// A tree under construction: the open lists and maps, outermost first.
pub(super) struct Builder<'a> {
    file: &'a str,
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    done: Documents,
    nodes: usize,
    nodes_max: usize,
    aliased_bytes: usize,
}

/// A list or map whose end has not come.
struct Open {
    at: At,
    anchor: usize,
    kind: Kind,
}

enum Kind {
    List(Vec<Node>),
    Map {
        entries: Vec<Entry>,
        seen: HashSet<String>,
        key: Option<Key>,
    },
    /// One whose fault is told; what it holds is dropped.
    Told,
}

/// A key that waits for its value; no text if the pair is dropped.
struct Key {
    text: Option<String>,
    at: At,
}

/// What an alias may stand for, and what it costs.
struct Anchored {
    node: Node,
    cost: Cost,
}

/// Of a tree: its values, the bytes of its texts, its levels.
#[derive(Clone, Copy, Default)]
struct Cost {
    nodes: usize,
    bytes: usize,
    levels: usize,
}

impl<'a> Builder<'a> {
    pub(super) fn new(file: &'a str, nodes_max: usize) -> Self {
        let (open, anchors, done) = Default::default();
        Self { file, open, anchors, done, nodes: 0, nodes_max, aliased_bytes: 0 }
    }

    pub(super) fn read(mut self, text: &str) -> Result<Documents, Faults> {
        for event in Parser::new_from_str_with_options(text, options()) {
            let (event, span) = event.map_err(|error| self.no_yaml(&error))?;
            self.event(event, span)?;
        }
        Ok(self.done)
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Faults> {
        let at = at(&span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && !tag.as_deref().is_some_and(is_text);
                let scalar = Value::Scalar(Scalar { text: text.into_owned(), plain });
                let value = if self.tagged(tag.as_deref(), at) { scalar } else { Value::Told };
                self.node(Node { at, value }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.open(at, anchor, tag.as_deref(), Kind::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                let (entries, seen, key) = Default::default();
                self.open(at, anchor, tag.as_deref(), Kind::Map { entries, seen, key })
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.alias(at, Some(anchor)),
            Event::UnresolvedAlias(_) => self.alias(at, None),
            Event::DocumentEnd => {
                self.anchors.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, at: At, anchor: usize, tag: Option<&Tag>, kind: Kind) -> Result<(), Faults> {
        self.check_depth(at, 1)?;
        let kind = if self.tagged(tag, at) { kind } else { Kind::Told };
        self.open.push(Open { at, anchor, kind });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Faults> {
        let Some(Open { at, anchor, kind }) = self.open.pop() else { return Ok(()) };
        let value = match kind {
            Kind::List(items) => Value::List(items),
            Kind::Map { entries, .. } => Value::Map(Map(entries)),
            Kind::Told => Value::Told,
        };
        self.node(Node { at, value }, anchor)
    }

    /// A repetition, which counts as if it were written out.
    fn alias(&mut self, at: At, anchor: Option<usize>) -> Result<(), Faults> {
        let cost = anchor.and_then(|anchor| self.anchors.get(&anchor)).map(|anchored| anchored.cost);
        let Some(cost) = cost else {
            self.fault(at, Reason::thing("an alias of nothing", "a value"));
            return self.attach(Node { at, value: Value::Told });
        };
        self.check_depth(at, cost.levels)?;
        self.pay(at, cost)?;
        let copied =
            anchor.and_then(|anchor| self.anchors.get(&anchor)).map(|anchored| anchored.node.value.clone());
        copied.map_or(Ok(()), |value| self.attach(Node { at, value }))
    }

    /// A value that was written: counted, kept for aliases, and put where it belongs.
    fn node(&mut self, node: Node, anchor: usize) -> Result<(), Faults> {
        self.pay(node.at, Cost { nodes: 1, ..Cost::default() })?;
        if anchor != 0 {
            // The copy that aliases are made from costs as much as one of them.
            let cost = cost(&node);
            self.pay(node.at, cost)?;
            self.anchors.insert(anchor, Anchored { node: node.clone(), cost });
        }
        self.attach(node)
    }

    fn attach(&mut self, node: Node) -> Result<(), Faults> {
        match self.open.last_mut().map(|open| &mut open.kind) {
            None => self.done.nodes.push(node),
            Some(Kind::Told) => {}
            Some(Kind::List(items)) => items.push(node),
            Some(Kind::Map { entries, key, .. }) => match key.take() {
                Some(Key { text: Some(key), at }) => entries.push(Entry { key, at, node }),
                Some(Key { text: None, .. }) => {}
                None => self.key(node),
            },
        }
        Ok(())
    }

    /// A value in the place of a key. One at fault takes its own value with it.
    fn key(&mut self, node: Node) {
        let at = node.at;
        let text = self.key_text(node).map_err(|reason| reason.map(|reason| self.fault(at, reason))).ok();
        if let Some(Open { kind: Kind::Map { key, .. }, .. }) = self.open.last_mut() {
            *key = Some(Key { text, at });
        }
    }

    /// The text of a key. Error: a reason, unless its fault is told already.
    fn key_text(&mut self, node: Node) -> Result<String, Option<Reason>> {
        let kind = node.kind();
        let Scalar { text, plain } = match node.value {
            Value::Scalar(scalar) => scalar,
            Value::Told => return Err(None),
            _ => return Err(Some(Reason::thing(format_args!("{kind} as a key"), "text"))),
        };
        if plain && text == "<<" {
            return Err(Some(Reason::thing("a merge key", "each key written out")));
        }
        let first = match self.open.last_mut().map(|open| &mut open.kind) {
            Some(Kind::Map { seen, .. }) => seen.insert(text.clone()),
            _ => true,
        };
        if first { Ok(text) } else { Err(Some(Reason::text(&text, "each key once"))) }
    }

    /// Whether a tag means nothing beyond what is written; one that does is a fault.
    fn tagged(&mut self, tag: Option<&Tag>, at: At) -> bool {
        const KNOWN: [&str; 7] = ["str", "int", "float", "bool", "null", "seq", "map"];
        let Some(tag) = tag else { return true };
        let known = is_text(tag) || KNOWN.iter().any(|known| tag.is_yaml_core_schema_tag(known));
        if !known {
            let reason = Reason::thing(format_args!("tag {:?}", tag.original()), "a value without one");
            self.fault(at, reason);
        }
        known
    }

    fn check_depth(&self, at: At, further: usize) -> Result<(), Faults> {
        if self.open.len().saturating_add(further) <= TREE_DEPTH_MAX {
            return Ok(());
        }
        Err(self.end(at, too_deep()))
    }

    fn pay(&mut self, at: At, cost: Cost) -> Result<(), Faults> {
        self.nodes = self.nodes.saturating_add(cost.nodes);
        self.aliased_bytes = self.aliased_bytes.saturating_add(cost.bytes);
        let found = if self.nodes > self.nodes_max {
            format!("more than {} values", self.nodes_max)
        } else if self.aliased_bytes > ALIASED_BYTES_MAX {
            format!("aliases of more than {ALIASED_BYTES_MAX} bytes")
        } else {
            return Ok(());
        };
        Err(self.end(at, Reason::thing(found, "fewer")))
    }

    fn fault(&mut self, at: At, reason: Reason) {
        let path = self.path();
        self.done.faults.add_at(self.file, at, &path, reason);
    }

    fn end(&self, at: At, reason: Reason) -> Faults {
        let mut faults = Faults::default();
        faults.add_at(self.file, at, "", reason);
        faults
    }

    fn no_yaml(&self, error: &ScanError) -> Faults {
        let message = error.info().lines().collect::<Vec<_>>().join(" ");
        let reason = match error.kind() {
            ErrorKind::RecursionLimitExceeded => too_deep(),
            _ => Reason::thing(format_args!("no YAML ({message})"), "YAML"),
        };
        self.end(at(error.marker()), reason)
    }

    /// Where the next value goes, such as `pools[0].name`.
    fn path(&self) -> String {
        let mut path = String::new();
        for open in &self.open {
            match &open.kind {
                Kind::List(items) => path.push_str(&format!("[{}]", items.len())),
                Kind::Map { key: Some(Key { text: Some(key), .. }), .. } => path = key_path(&path, key),
                Kind::Map { .. } | Kind::Told => {}
            }
        }
        path
    }
}

fn options() -> Options {
    let mut options = Options::default();
    options.emit_unresolved_aliases = true;
    options.flow_nesting_limit = TREE_DEPTH_MAX;
    options.block_nesting_limit = TREE_DEPTH_MAX;
    options.set_emit_comments(false);
    options
}

fn too_deep() -> Reason {
    Reason::thing(format_args!("more than {TREE_DEPTH_MAX} levels"), "fewer")
}

fn at(marker: &Marker) -> At {
    let from_usize = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    At { line: from_usize(marker.line()), column: from_usize(marker.col().saturating_add(1)) }
}

/// `!!str`, and `!` alone, which means the same.
fn is_text(tag: &Tag) -> bool {
    tag.is_yaml_core_schema_tag("str") || tag.original() == "!"
}

/// Recursion as deep as the tree, which is bounded.
fn cost(node: &Node) -> Cost {
    let (inner, bytes): (Vec<Cost>, usize) = match &node.value {
        Value::Scalar(scalar) => (Vec::new(), scalar.text.len()),
        Value::List(items) => (items.iter().map(cost).collect(), 0),
        Value::Map(Map(entries)) => {
            let keys = entries.iter().map(|entry| entry.key.len()).sum();
            (entries.iter().map(|entry| cost(&entry.node)).collect(), keys)
        }
        Value::Told => (Vec::new(), 0),
    };
    let level = usize::from(matches!(node.value, Value::List(_) | Value::Map(_)));
    inner.iter().fold(Cost { nodes: 1, bytes, levels: level }, |sum, one| Cost {
        nodes: sum.nodes.saturating_add(one.nodes),
        bytes: sum.bytes.saturating_add(one.bytes),
        levels: sum.levels.max(one.levels.saturating_add(level)),
    })
}
