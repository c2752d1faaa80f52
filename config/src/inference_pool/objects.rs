//! The objects of a text, whichever way they are bundled.

use super::field::{Field, invalid, required};
use crate::faults::Faults;
use crate::tree::Node;

/// The objects that count, in the order in which they stand.
#[derive(Default)]
pub(super) struct Found<'a> {
    pub(super) pools: Vec<Object<'a>>,
    pub(super) pods: Vec<Object<'a>>,
}

/// An object of a known kind.
#[derive(Clone, Copy)]
pub(super) struct Object<'a> {
    pub(super) node: &'a Node,
}

/// What an object is called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Metadata<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) node: &'a Node,
}

/// Sorts the documents of a text by kind; a list stands for its items.
pub(super) fn collect<'a>(file: &str, documents: &'a [Node], faults: &mut Faults) -> Found<'a> {
    let mut found = Found::default();
    for node in documents.iter().filter(|node| !node.is_nothing()) {
        sort(file, node, "", &mut found, faults);
    }
    found
}

/// `kind` is what a list says of its items, which then need not say it: `PodList` holds pods. The depth of a tree is
/// bounded, so this is too.
fn sort<'a>(file: &str, node: &'a Node, kind: &'a str, found: &mut Found<'a>, faults: &mut Faults) {
    let object = Field::new(node, "");
    if !object.is_map() {
        return invalid(file, &object, "object", faults);
    }
    let kind = object.text("kind").unwrap_or(kind);
    match kind {
        "" => required(file, &object, "kind", faults),
        "InferencePool" => found.pools.push(Object { node }),
        "Pod" => found.pods.push(Object { node }),
        _ => {
            let Some(kind) = kind.strip_suffix("List") else { return };
            for item in object.get("items").and_then(Field::items).into_iter().flatten() {
                sort(file, item, kind, found, faults);
            }
        }
    }
}

impl<'a> Object<'a> {
    /// The whole object, to look for fields.
    pub(super) fn root(self) -> Field<'a> {
        Field::new(self.node, "")
    }

    /// What it is called: as in the cluster, `default` is the namespace of what names none. Nothing without a name.
    pub(super) fn metadata(self) -> Option<Metadata<'a>> {
        let metadata = self.root().get("metadata")?;
        let name = metadata.text("name").filter(|name| !name.is_empty())?;
        Some(Metadata {
            namespace: metadata.text("namespace").unwrap_or("default"),
            name,
            node: metadata.node,
        })
    }
}
