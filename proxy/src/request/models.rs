//! The answer to `/v1/models` out of what engines list, and which of them list a model.
//!
//! One replica's list would hide the adapters of the others, and the router's own words would lose members that
//! clients need (`max_model_len`, `parent`). So entries are an engine's own bytes, and only an alias's id is put in place of
//! another. Pure: whose lists are known, and who is usable, is decided before.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use std::time::Instant;

use bytes::Bytes;
use http::Method;
use pingora_http::RequestHeader;

use super::reply::Refusal;
use crate::endpoints::model_list::{Entry, ModelList};
use crate::live::Live;
use crate::metrics::Kind;
use crate::pool::Pool;

/// What one pool offers.
#[derive(Clone, Debug)]
pub(crate) struct Offer<'a> {
    /// Lists of its usable endpoints as far as they are known, in the order of the configuration.
    pub(crate) lists: Vec<Arc<ModelList>>,
    /// The pool's models: only these and adapters are shown. Empty: all.
    pub(crate) models: &'a [String],
    /// Further names of models: the one that an engine is asked for, by what a client asks for.
    pub(crate) aliases: &'a BTreeMap<String, String>,
}

/// The answer to a request for models, if it is one and lists are known. Errors: a model that nobody lists; nobody who could
/// list any.
pub(super) fn answer(live: &Live, head: &RequestHeader) -> Result<Option<Bytes>, Refusal> {
    let path = head.uri.path();
    let wants_all = path.trim_end_matches('/').ends_with("/v1/models");
    if !matches!(head.method, Method::GET | Method::HEAD) || !(wants_all || path.contains("/v1/models/")) {
        return Ok(None);
    }
    let are_read = live.pools.iter().any(|pool| pool.config.models_interval.is_some());
    if are_read && !live.pools.iter().any(|pool| pool.ready()) {
        return Err(Kind::NoEndpoint.into());
    }
    let offers: Vec<_> = live.pools.iter().map(|pool| Offer::of(pool, Instant::now())).collect();
    if wants_all {
        return Ok(merged(&offers));
    }
    let Some(id) = id_of(path).filter(|_| is_known(&offers)) else { return Ok(None) };
    one(&offers, &id).map(Some).ok_or(Kind::ModelNotFound.into())
}

/// The body of `GET /v1/models` over all pools: what each endpoint lists, and then the aliases of that which is listed. Of
/// entries with one id the first is shown. `None` when no list is known, so nothing can be said.
pub(crate) fn merged(offers: &[Offer<'_>]) -> Option<Bytes> {
    if !is_known(offers) {
        return None;
    }
    let mut body = Vec::from(&br#"{"object":"list","data":["#[..]);
    let mut shown = HashSet::new();
    let mut show = |id: &str, pieces: [&[u8]; 3]| {
        if shown.insert(id.to_owned()) {
            if shown.len() > 1 {
                body.push(b',');
            }
            pieces.into_iter().for_each(|piece| body.extend_from_slice(piece));
        }
    };
    for offer in offers {
        offer.entries().for_each(|entry| show(&entry.id, [&entry.raw, b"", b""]));
        for (asked, served) in offer.aliases {
            if let Some(entry) = offer.entry(served) {
                let [before, after] = around_id(entry);
                show(asked, [before, &quoted(asked), after]);
            }
        }
    }
    body.extend_from_slice(b"]}");
    Some(body.into())
}

/// The body of `GET /v1/models/{id}`: the entry of a model, adapter or alias that [`merged`] shows. `None`: nobody lists it.
pub(crate) fn one(offers: &[Offer<'_>], id: &str) -> Option<Bytes> {
    offers.iter().find_map(|offer| offer.shown(id))
}

/// Whether the list of any endpoint is known.
pub(crate) fn is_known(offers: &[Offer<'_>]) -> bool {
    offers.iter().any(|offer| !offer.lists.is_empty())
}

/// The id in the path of `GET /v1/models/{id}`: slashes of its own, as they are or as `%2F`. `None`: another path, or an id
/// that is none.
pub(crate) fn id_of(path: &str) -> Option<String> {
    let (_, id) = path.split_once("/v1/models/")?;
    let mut text = Vec::with_capacity(id.len());
    let mut rest = id.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            text.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
            rest = rest.get(2..)?;
        } else {
            text.push(*byte);
        }
    }
    String::from_utf8(text).ok().filter(|id| !id.is_empty())
}

impl<'a> Offer<'a> {
    /// What the endpoints of a pool that can be used list now.
    fn of(pool: &'a Pool, now: Instant) -> Self {
        let stale_after = pool.config.load.stale_after;
        let usable = pool.endpoints().filter(|endpoint| endpoint.usable(now, stale_after));
        let lists = usable.filter_map(|endpoint| endpoint.models(now)).collect();
        Self { lists, models: &pool.config.models, aliases: &pool.config.aliases }
    }
}

impl Offer<'_> {
    /// All entries that are shown, repeated ones too.
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.lists.iter().flat_map(|list| list.entries()).filter(|entry| self.shows(entry))
    }

    /// The first entry of a model that is shown.
    fn entry(&self, id: &str) -> Option<&Entry> {
        self.lists.iter().filter_map(|list| list.entry(id)).find(|entry| self.shows(entry))
    }

    fn shows(&self, entry: &Entry) -> bool {
        self.models.is_empty() || entry.is_adapter || self.models.iter().any(|model| **model == *entry.id)
    }

    /// An entry or an alias's copy of one.
    fn shown(&self, id: &str) -> Option<Bytes> {
        if let Some(entry) = self.entry(id) {
            return Some(entry.raw.clone());
        }
        let [before, after] = around_id(self.entry(self.aliases.get(id)?)?);
        Some([before, &quoted(id), after].concat().into())
    }
}

/// An entry before and after its id's value.
fn around_id(entry: &Entry) -> [&[u8]; 2] {
    let before = entry.raw.get(..entry.id_at.start).unwrap_or_default();
    [before, entry.raw.get(entry.id_at.end..).unwrap_or_default()]
}

fn quoted(text: &str) -> Vec<u8> {
    serde_json::Value::from(text).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Instant;

    use super::*;

    fn list(entries: &str) -> Arc<ModelList> {
        let page = format!(r#"{{"object":"list","data":[{entries}]}}"#);
        Arc::new(ModelList::read(page.into(), Instant::now()).unwrap())
    }

    const BASE: &str = r#"{"id":"base", "max_model_len":2048,"created":1e3,"root":"base","parent":null}"#;
    const LORA: &str = r#"{"id":"org\/ad:1","root":"x/y","parent":"base"}"#;

    struct Pool {
        lists: Vec<Arc<ModelList>>,
        models: Vec<String>,
        aliases: BTreeMap<String, String>,
    }

    impl Pool {
        fn offer(&self) -> Offer<'_> {
            Offer { lists: self.lists.clone(), models: &self.models, aliases: &self.aliases }
        }
    }

    fn pool(lists: &[&str], models: &[&str], aliases: &[(&str, &str)]) -> Pool {
        Pool {
            lists: lists.iter().map(|entries| list(entries)).collect(),
            models: models.iter().map(ToString::to_string).collect(),
            aliases: aliases.iter().map(|(asked, served)| (asked.to_string(), served.to_string())).collect(),
        }
    }

    fn offers(pools: &[Pool]) -> Vec<Offer<'_>> {
        pools.iter().map(Pool::offer).collect()
    }

    fn shown(pools: &[Pool]) -> Option<String> {
        merged(&offers(pools)).map(|body| String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn the_merged_list_is_the_union_with_members_intact() {
        let other = r#"{"id":"base","max_model_len":1}"#;
        let both = format!("{BASE},{LORA}");
        let copy = BASE.replace(r#""base", "max"#, r#""b\"x", "max"#);
        let secret = r#"{"id":"secret"}"#;
        for (name, pools, wanted) in [
            ("nothing known", vec![pool(&[], &[], &[("a", "base")])], None),
            ("no pools", vec![], None),
            ("an engine without models", vec![pool(&[""], &[], &[])], Some(String::new())),
            ("one", vec![pool(&[BASE], &[], &[])], Some(BASE.to_owned())),
            ("the first of one id", vec![pool(&[BASE, other], &[], &[])], Some(BASE.to_owned())),
            ("a union in order", vec![pool(&[BASE, &both], &[], &[])], Some(both.clone())),
            (
                "an id twice in one list",
                vec![pool(&[&format!("{BASE},{other}")], &[], &[])],
                Some(BASE.to_owned()),
            ),
            ("an alias", vec![pool(&[BASE], &[], &[("b\"x", "base")])], Some(format!("{BASE},{copy}"))),
            ("an alias of nobody", vec![pool(&[BASE], &[], &[("x", "y")])], Some(BASE.to_owned())),
            (
                "an alias that is listed",
                vec![pool(&[&both], &[], &[("base", "org/ad:1")])],
                Some(both.clone()),
            ),
            (
                "only models that are allowed, and adapters",
                vec![pool(&[secret, &both], &["base"], &[])],
                Some(both.clone()),
            ),
            (
                "no alias of what is not allowed",
                vec![pool(&[secret], &["base"], &[("x", "secret")])],
                Some(String::new()),
            ),
            (
                "two pools",
                vec![pool(&[LORA], &[], &[]), pool(&[], &[], &[]), pool(&[&both], &[], &[])],
                Some(format!("{LORA},{BASE}")),
            ),
        ] {
            let wanted = wanted.map(|entries| format!(r#"{{"object":"list","data":[{entries}]}}"#));
            assert_eq!(shown(&pools), wanted, "{name}");
        }
    }

    #[test]
    fn one_model_is_what_the_merged_list_shows_of_it() {
        let both = format!("{BASE},{LORA}");
        let pools = [
            pool(&[BASE, &both], &["base"], &[("x", "org/ad:1"), ("y", "none")]),
            pool(&[r#"{"id":"z"}"#], &[], &[]),
        ];
        let copy = LORA.replace(r#""org\/ad:1""#, r#""x""#);
        for (id, wanted) in [
            ("base", Some(BASE)),
            ("org/ad:1", Some(LORA)),
            ("x", Some(copy.as_str())),
            ("y", None),
            ("z", Some(r#"{"id":"z"}"#)),
            ("nope", None),
            ("", None),
        ] {
            assert_eq!(one(&offers(&pools), id).as_deref(), wanted.map(str::as_bytes), "{id}");
        }
        assert!(is_known(&offers(&pools)) && !is_known(&offers(&[pool(&[], &["base"], &[])])));
    }

    #[test]
    fn ids_have_slashes() {
        for (path, wanted) in [
            ("/v1/models/base", Some("base")),
            ("/v1/models/org/ad:1", Some("org/ad:1")),
            ("/v1/models/org%2fad%3A1", Some("org/ad:1")),
            ("/below/v1/models/a/v1/models/b", Some("a/v1/models/b")),
            ("/v1/models/%C3%A9", Some("é")),
            ("/v1/models/", None),
            ("/v1/models", None),
            ("/v1/models/%", None),
            ("/v1/models/%2", None),
            ("/v1/models/%+1", None),
            ("/v1/models/%FF", None),
            ("/v1/chat/completions", None),
        ] {
            assert_eq!(id_of(path).as_deref(), wanted, "{path}");
        }
    }
}
