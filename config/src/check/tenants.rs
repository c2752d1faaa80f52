//! Who may send what. Keys become hashes here; past here nobody has them.

use std::num::NonZeroU32;

use super::headers;
use super::names::{NAME, refuse_repeated};
use crate::defaults::{PRIORITY_MAX, TENANT_KEYS_MAX, TENANTS_MAX};
use crate::faults::Reason;
use crate::read::form::{Form, Integers, Sizes, Switch};
use crate::read::{Key, Placed, REQUIRED, SecretForm, Section, Source, live};
use crate::{KeyHash, Tenant, TenantLimits};

const TENANTS: Key = live(
    "tenants",
    "With any, a request needs a key of one of them, in `Authorization: Bearer` or `x-api-key`",
)
.default_is("none: everybody is served");
const NAME_KEY: Key = live("name", "Unique; in labels and logs");
const KEYS: Key = live("keys", "The tenant's API keys, or their SHA-256").default_is(REQUIRED);
const ISOLATE: Key = live(
    "isolate",
    "Whether nobody else's prompts are shared with this tenant's, in belief and in the engines; needs cache_salt_secret",
);
const PRIORITY: Key =
    live("priority", "Who goes first where requests wait for an endpoint (`pools[].queue`): the higher");
const LIMITS: Key = live("limits", "What the tenant may send; more is answered 429");
const RATE: Key = live("requests_per_second", "Requests a second, in the mean").default_is("unlimited");
const BURST: Key = live("burst", "Requests at once, beyond the mean").default_is("requests_per_second");
const CONCURRENT: Key = live("concurrent_requests", "Requests in flight").default_is("unlimited");
const TOKENS: Key =
    live("prompt_tokens_per_minute", "Estimated tokens of prompts a minute").default_is("unlimited");
const BYTES: Key = live("prompt_bytes_per_minute", "Bytes of bodies a minute").default_is("unlimited");

/// Reads the tenants. Those with a key or a name that is another's are faults.
pub(super) fn read(top: &mut Section<'_, '_>, has_salt_secret: bool) -> Vec<Tenant> {
    let Some(written) = top.sections(TENANTS, 0..=TENANTS_MAX, |section| tenant(section, has_salt_secret))
    else {
        return Vec::new();
    };
    let names = written.value.iter().map(|(tenant, name, _)| name.clone().map(|()| tenant.name.clone()));
    refuse_repeated(top.reader, names, String::clone, |name, _| Reason::text(name, "each name once"));
    let keys = written.value.iter().flat_map(|(.., keys)| keys.clone());
    refuse_repeated(
        top.reader,
        keys,
        |hash| *hash,
        |_, first| Reason::thing(format_args!("the key of {first}"), "each key once"),
    );
    written.value.into_iter().map(|(tenant, ..)| tenant).collect()
}

type Written = (Tenant, Placed<()>, Vec<Placed<KeyHash>>);

fn tenant(section: &mut Section<'_, '_>, has_salt_secret: bool) -> Option<Written> {
    let name = section.required(NAME_KEY, &NAME);
    section.require_list(KEYS.name);
    let sources = section.list(KEYS, 1..=TENANT_KEYS_MAX, &SecretForm::Hash);
    let sources = sources.map(|sources| sources.value).unwrap_or_default();
    let keys: Vec<_> = sources.into_iter().filter_map(|source| key(section, source)).collect();
    let isolate = section.value(ISOLATE, &Switch, false);
    if isolate.value && !has_salt_secret {
        let wanted = "cache_salt_secret: ${NAME} or file:PATH beside tenants, at least 16 bytes";
        section.reader.fault_of(&isolate, Reason::thing("true without cache_salt_secret", wanted));
    }
    let priorities = Integers { min: 0, max: PRIORITY_MAX };
    let priority = section.value(PRIORITY, &priorities, 0).value;
    let priority = u8::try_from(priority).unwrap_or_default();
    let limits = section.section(LIMITS, limits);
    let name = name?;
    let hashes = keys.iter().map(|key| key.value).collect();
    let isolate = isolate.value;
    let tenant = Tenant { name: name.value.to_string(), keys: hashes, isolate, priority, limits };
    Some((tenant, name.map(|_| ()), keys))
}

fn key(section: &mut Section<'_, '_>, source: Placed<Source>) -> Option<Placed<KeyHash>> {
    if let Source::Sha256(hash) = source.value {
        return Some(source.map(|_| KeyHash(hash)));
    }
    let secret = section.reader.secret(source)?;
    let secret = headers::line(section.reader, secret)?;
    Some(secret.map(|secret| KeyHash::of(secret.expose())))
}

fn limits(section: &mut Section<'_, '_>) -> TenantLimits {
    let counts = Integers { min: 1, max: u32::MAX.into() };
    let sizes = Sizes { min: 1, max: usize::try_from(u32::MAX).unwrap_or(usize::MAX) };
    let limits = TenantLimits {
        requests_per_second: limit(section, RATE, &counts),
        burst: limit(section, BURST, &counts),
        concurrent_requests: limit(section, CONCURRENT, &counts),
        prompt_tokens_per_minute: limit(section, TOKENS, &counts),
        prompt_bytes_per_minute: limit(section, BYTES, &sizes),
    };
    if section.has(BURST.name) && !section.has(RATE.name) {
        let path = section.path(RATE.name);
        section.lacks(&path, "it beside burst");
    }
    limits
}

fn limit<F: Form>(section: &mut Section<'_, '_>, key: Key, form: &F) -> Option<NonZeroU32>
where
    u32: TryFrom<F::Value>,
{
    let limit = section.optional(key, form)?.value;
    u32::try_from(limit).ok().and_then(NonZeroU32::new)
}
