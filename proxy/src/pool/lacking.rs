//! Which endpoints do not serve a model that others of the pool do: adapters come and go with each replica.

use std::collections::HashMap;
use std::sync::Arc;

use picker::belief::EndpointId;

use crate::endpoints::model_list::ModelList;

/// Models that not every endpoint serves, and who does not. Mostly empty: replicas are alike.
#[derive(Debug, Default)]
pub(super) struct Lacking(HashMap<Box<str>, Box<[EndpointId]>>);

impl Lacking {
    /// From the endpoints' lists, as far as they are known. An endpoint of which no list is known may have any model, but no
    /// adapter that others list.
    pub(super) fn of(lists: &[(EndpointId, Option<Arc<ModelList>>)]) -> Self {
        let mut lacking = HashMap::new();
        for entry in lists.iter().filter_map(|(_, list)| list.as_ref()).flat_map(|list| list.entries()) {
            if lacking.contains_key(&entry.id) {
                continue;
            }
            let lacks = |list: &Option<Arc<ModelList>>| match list {
                Some(list) => list.entry(&entry.id).is_none(),
                None => entry.is_adapter,
            };
            let without: Box<[_]> = lists.iter().filter(|(_, list)| lacks(list)).map(|(id, _)| *id).collect();
            lacking.insert(entry.id.clone(), without);
        }
        lacking.retain(|_, without| !without.is_empty());
        Self(lacking)
    }

    /// Those that do not serve the model. HOT: a look at an empty map where replicas are alike.
    pub(super) fn without(&self, model: &str) -> &[EndpointId] {
        if self.0.is_empty() {
            return &[];
        }
        self.0.get(model).map_or(&[], |without| without)
    }

    /// Whether every endpoint serves what any does.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Instant;

    use super::*;

    fn list(entries: &[(&str, Option<&str>)]) -> Option<Arc<ModelList>> {
        let entry = |(id, parent): &(&str, Option<&str>)| serde_json::json!({"id": id, "parent": parent});
        let data: Vec<_> = entries.iter().map(entry).collect();
        let page = serde_json::json!({"object": "list", "data": data}).to_string();
        Some(Arc::new(ModelList::read(page.into(), Instant::now()).unwrap()))
    }

    #[test]
    fn a_model_goes_where_it_is_listed() {
        const BASE: (&str, Option<&str>) = ("base", None);
        const ADAPTER: (&str, Option<&str>) = ("ad", Some("base"));
        for (shows, lists, model, wanted) in [
            ("all alike", vec![list(&[BASE]), list(&[BASE])], "base", vec![0, 1]),
            ("an adapter of one", vec![list(&[BASE]), list(&[BASE, ADAPTER])], "ad", vec![1]),
            ("its model is everybody's", vec![list(&[BASE]), list(&[BASE, ADAPTER])], "base", vec![0, 1]),
            ("nobody lists it", vec![list(&[BASE]), list(&[BASE, ADAPTER])], "nope", vec![0, 1]),
            ("an adapter, and one that tells nothing", vec![None, list(&[BASE, ADAPTER])], "ad", vec![1]),
            ("a model, and one that tells nothing", vec![None, list(&[BASE]), list(&[])], "base", vec![0, 1]),
            ("nobody tells anything", vec![None, None], "base", vec![0, 1]),
        ] {
            let named: Vec<_> = (0..).map(EndpointId).zip(lists).collect();
            let lacking = Lacking::of(&named);
            let left = named.iter().filter(|(id, _)| !lacking.without(model).contains(id));
            assert_eq!(left.map(|(id, _)| id.0).collect::<Vec<_>>(), wanted, "{shows}");
        }
    }
}
