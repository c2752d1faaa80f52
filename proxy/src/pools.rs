//! Which pool serves a model.
//!
//! The configuration says it of models and aliases; adapters come and go with the engines, whose lists say it. Both are
//! gathered into one table ahead of the requests, so that each costs one look-up or two. Pure: no lock, no clock.

use std::collections::HashMap;
use std::sync::Arc;

use crate::endpoints::model_list::ModelList;

/// The table. Pools are named by their place in the configuration. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    written: Arc<Written>,
    /// The pools whose engines list an adapter.
    adapters: Arc<HashMap<Box<str>, usize>>,
}

/// What the configuration says.
#[derive(Debug, Default)]
struct Written {
    models: HashMap<Box<str>, Target>,
    /// The pool that names no models.
    rest: Option<usize>,
}

#[derive(Debug)]
struct Target {
    pool: usize,
    /// For an alias, the model that an engine is asked for.
    served: Option<Box<str>>,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route<'a> {
    /// The pool's place in the configuration.
    pub(crate) pool: usize,
    /// What an engine is asked for in place of an alias.
    pub(crate) served: Option<&'a str>,
}

impl Routes {
    /// The routes to checked pools, as long as no engine's list is known.
    pub(crate) fn new(pools: &[config::Pool]) -> Self {
        let mut written = Written::default();
        for (pool, config) in pools.iter().enumerate() {
            if config.models.is_empty() {
                written.rest.get_or_insert(pool);
            }
            for model in &config.models {
                written.models.entry(model.as_str().into()).or_insert(Target { pool, served: None });
            }
        }
        for (pool, config) in pools.iter().enumerate() {
            for (asked, served) in &config.aliases {
                let target = Target { pool, served: Some(served.as_str().into()) };
                written.models.entry(asked.as_str().into()).or_insert(target);
            }
        }
        Self { written: Arc::new(written), adapters: Arc::default() }
    }

    /// The same pools with the adapters that their engines list: of each endpoint its pool and its list, as far as it is
    /// known. Where two pools list one, the first has it. The pool that names no models has what is left in any case.
    pub(crate) fn with_adapters<'a>(&self, lists: impl Iterator<Item = (usize, &'a ModelList)>) -> Self {
        let mut adapters = HashMap::new();
        for (pool, list) in lists.filter(|(pool, _)| self.written.rest != Some(*pool)) {
            for entry in list.entries().iter().filter(|entry| entry.is_adapter) {
                let first = adapters.entry(entry.id.clone()).or_insert(pool);
                *first = pool.min(*first);
            }
        }
        Self { written: self.written.clone(), adapters: Arc::new(adapters) }
    }

    /// The pool for a model: the one that names it, or names it an alias, or whose engines have it for an adapter, else the one
    /// that names no models. `None`: the model does not exist. No allocation.
    pub(crate) fn find(&self, model: &str) -> Option<Route<'_>> {
        if let Some(Target { pool, served }) = self.written.models.get(model) {
            return Some(Route { pool: *pool, served: served.as_deref() });
        }
        let pool = self.adapters.get(model).copied().or(self.written.rest)?;
        Some(Route { pool, served: None })
    }

    /// The pool for a request without a model: the one that names none, or the only one.
    pub(crate) fn without_model(&self) -> Option<usize> {
        let mut pools = self.written.models.values().map(|target| target.pool);
        let only = pools.next().filter(|first| pools.all(|other| other == *first));
        self.written.rest.or(only)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Instant;

    use config::{Config, Flags, System};

    use super::*;

    fn pool(models: &[&str], aliases: &[(&str, &str)]) -> config::Pool {
        let flags = Flags { endpoints: vec!["a=http://a".to_owned()], ..Flags::default() };
        let Config { mut pools, .. } = config::load(None, &flags, &System).unwrap().config;
        let mut pool = pools.remove(0);
        pool.models = models.iter().map(ToString::to_string).collect();
        pool.aliases =
            aliases.iter().map(|(asked, served)| (asked.to_string(), served.to_string())).collect();
        pool
    }

    fn list(entries: &[(&str, Option<&str>)]) -> ModelList {
        let entry = |(id, parent): &(&str, Option<&str>)| serde_json::json!({"id": id, "parent": parent});
        let data: Vec<_> = entries.iter().map(entry).collect();
        let page = serde_json::json!({"object": "list", "data": data}).to_string();
        ModelList::read(page.into(), Instant::now()).unwrap()
    }

    fn route(pool: usize) -> Option<Route<'static>> {
        Some(Route { pool, served: None })
    }

    #[test]
    fn a_model_goes_to_the_pool_that_has_it() {
        let pools = [
            pool(&["base", "org/other"], &[("gpt-4", "base"), ("small", "lora-b")]),
            pool(&["large"], &[]),
            pool(&[], &[("any", "whatever")]),
        ];
        let strict = Routes::new(&pools[..2]);
        let lists = [
            list(&[("base", None), ("lora-a", Some("base")), ("secret", None)]),
            list(&[
                ("large", None),
                ("lora-a", Some("large")),
                ("lora-b", Some("large")),
                ("base", Some("x")),
            ]),
            list(&[("rest", None), ("lora-c", Some("rest")), ("lora-b", Some("rest"))]),
        ];
        // In whatever order.
        let known = |count: usize| lists[..count].iter().enumerate().rev();
        let open = Routes::new(&pools).with_adapters(known(3));
        let listed = strict.with_adapters(known(2));
        let alias = |served| Some(Route { pool: 0, served: Some(served) });
        for (name, routes, model, wanted) in [
            ("a model", &strict, "base", route(0)),
            ("a model of the second pool", &strict, "large", route(1)),
            ("an alias", &strict, "gpt-4", alias("base")),
            ("an adapter that is not listed", &strict, "lora-a", None),
            ("an adapter", &listed, "lora-b", route(1)),
            ("an adapter of two pools", &listed, "lora-a", route(0)),
            ("an alias of an adapter", &listed, "small", alias("lora-b")),
            ("a listed model that the pool does not name", &listed, "secret", None),
            ("a model that is another's adapter", &listed, "base", route(0)),
            ("nobody's", &listed, "nope", None),
            ("no name", &listed, "", None),
            ("another case", &listed, "Base", None),
            ("the rest", &open, "nope", route(2)),
            ("the rest's own adapter", &open, "lora-c", route(2)),
            ("an adapter of two pools, one the rest", &open, "lora-b", route(1)),
            ("an alias of the rest", &open, "any", Some(Route { pool: 2, served: Some("whatever") })),
        ] {
            assert_eq!(routes.find(model), wanted, "{name}");
        }
        let gone = listed.with_adapters(std::iter::empty());
        assert_eq!(gone.find("lora-b"), None, "unloaded");
    }

    #[test]
    fn a_request_without_a_model_goes_where_there_is_no_doubt() {
        let (named, other, rest) = (pool(&["a", "b"], &[("c", "a")]), pool(&["d"], &[]), pool(&[], &[]));
        for (name, pools, wanted) in [
            ("one pool that names models", vec![named.clone()], Some(0)),
            ("one that names none", vec![rest.clone()], Some(0)),
            ("two", vec![named.clone(), other.clone()], None),
            ("the rest", vec![named, other, rest], Some(2)),
            ("none", vec![], None),
        ] {
            assert_eq!(Routes::new(&pools).without_model(), wanted, "{name}");
        }
    }
}
