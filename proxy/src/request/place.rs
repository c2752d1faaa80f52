//! Which pool a request is for, and the only two edits of its body: an alias's model, an isolated tenant's salt.

use std::sync::Arc;

use bytes::Bytes;
use picker::decide::MODEL_BYTES_MAX;
use picker::read::{Api, Body, Member};

use super::edit::{Edits, edited};
use super::reply::Refusal;
use crate::edge::salt::Isolation;
use crate::live::Live;
use crate::metrics::Kind;
use crate::pool::Pool;

/// Paths with prompts whose bodies have no `cache_salt`: the engine would ignore it (vLLM 0.32,
/// `entrypoints/pooling/embed/protocol.py`).
const UNSALTED: [&str; 1] = ["/v2/embed"];

/// Where a request goes.
pub(crate) struct Placed {
    pub(crate) pool: Arc<Pool>,
    /// The model that an engine is asked for, where it makes a difference to whom.
    pub(crate) model: Option<String>,
    /// The body as an engine gets it: the client's own, but for an alias and a salt.
    pub(crate) body: Bytes,
}

/// Finds the pool, and edits the body where the configuration says so. The body is read only where something hangs on it.
/// Errors: nobody serves the model, or the prompt cannot be kept apart as its tenant's must be.
pub(crate) fn place(
    live: &Live,
    (api, path): (Api, &str),
    body: Bytes,
    isolation: Option<&Isolation>,
) -> Result<Placed, Refusal> {
    if let (Some(pool), None) = (only_pool(live), isolation) {
        return Ok(Placed { pool: pool.clone(), model: None, body });
    }
    let read = if body.is_empty() { None } else { Body::read(&body).ok() };
    let asked = read.as_ref().and_then(|read| read.model(MODEL_BYTES_MAX));
    let routes = live.routes.load();
    let route = asked.as_deref().and_then(|model| routes.find(model));
    // What asks for no model goes where there is no doubt; what has no prompt either, anywhere.
    let anywhere = || if api == Api::Other { Some(0) } else { None };
    let place = match (&asked, route) {
        (_, Some(route)) => Some(route.pool),
        (Some(_), None) if api != Api::Other => None,
        _ => routes.without_model().or_else(anywhere),
    };
    let pool = place.and_then(|place| live.pools.get(place)).ok_or(Kind::ModelNotFound)?;
    let served = route.and_then(|route| route.served);
    let salt = isolation.map(|isolation| salt(isolation, (api, path), &body, read.as_ref())).transpose()?;
    let edits = Edits { model: served, salt: salt.flatten() };
    let edited = read.as_ref().map(|read| edited(&body, read, edits));
    let model = served.map(str::to_owned).or(asked);
    Ok(Placed { pool: pool.clone(), model, body: edited.unwrap_or(body) })
}

/// The pool, where there is one, it serves all that it is asked for, and all its endpoints are alike.
fn only_pool(live: &Live) -> Option<&Arc<Pool>> {
    let [pool] = live.pools.as_slice() else { return None };
    let is_plain = pool.config.models.is_empty() && pool.config.aliases.is_empty();
    (is_plain && pool.known.is_even()).then_some(pool)
}

/// Whether a body has a `cache_salt` that some engine might take for none: anything but a text, `null` and nothing.
fn has_odd_salt(read: &Body<'_>) -> bool {
    let salt = read.member(Member::CacheSalt).filter(|salt| *salt != b"null");
    salt.is_some_and(|salt| salt.first() != Some(&b'"') || salt == b"\"\"")
}

/// The salt for the body of an isolated tenant, where its answer fills a cache. Errors: the engine could read a prompt in it
/// that cannot be salted.
fn salt<'a>(
    isolation: &'a Isolation,
    (api, path): (Api, &str),
    body: &Bytes,
    read: Option<&Body<'_>>,
) -> Result<Option<&'a str>, Refusal> {
    match (api, read) {
        _ if body.is_empty() => Ok(None),
        (Api::Tokenize, _) => Ok(None),
        (Api::Other, _) | (_, None) => Err(Kind::Unsalted.into()),
        _ if UNSALTED.iter().any(|end| path.trim_end_matches('/').ends_with(end)) => {
            Err(Kind::Unsalted.into())
        }
        (_, Some(read)) if has_odd_salt(read) => Err(Kind::Unsalted.into()),
        (_, Some(_)) => Ok(Some(isolation.cache_salt())),
    }
}
