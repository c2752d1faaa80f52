//! The endpoints of a pool, from the file or from flags: each well-formed, no name and no address twice.

use std::collections::{HashMap, HashSet};

use serde_saphyr::Spanned;

use super::{Checker, Place};
use crate::defaults::ENDPOINTS_MAX;
use crate::faults::Reason;
use crate::raw::{List, RawEndpoint, Text};
use crate::{Endpoint, EndpointName, EndpointUrl, Flags};

const WANTED_FLAG: &str = "NAME=URL, such as a=http://127.0.0.1:8001";

/// A checked endpoint and where its two parts were written.
struct Written {
    endpoint: Endpoint,
    name: (Place, String),
    url: (Place, String),
}

impl Checker<'_> {
    pub(super) fn endpoints(&mut self, raw: List<RawEndpoint>, flags: &Flags) -> Vec<Endpoint> {
        let from_file = raw.map_or_else(Vec::new, |list| self.listed(list));
        let from_flags = self.flagged(&flags.endpoints);
        let written = if flags.endpoints.is_empty() { from_file } else { from_flags };
        self.refuse_repeated(&written);
        written.into_iter().map(|written| written.endpoint).collect()
    }

    fn listed(&mut self, list: Spanned<Vec<Spanned<RawEndpoint>>>) -> Vec<Written> {
        self.check_count(list.value.len(), &Place::File(list.referenced), "endpoints");
        let items = list.value.into_iter().take(ENDPOINTS_MAX).enumerate();
        items.filter_map(|(index, item)| self.item(index, item)).collect()
    }

    fn item(&mut self, index: usize, raw: Spanned<RawEndpoint>) -> Option<Written> {
        let RawEndpoint { name, url } = raw.value;
        let whole = Place::File(raw.referenced);
        let name =
            self.required(&whole, format!("endpoints[{index}].name"), name, "a name", EndpointName::new);
        let url = self.required(
            &whole,
            format!("endpoints[{index}].url"),
            url,
            "http://HOST[:PORT]",
            EndpointUrl::new,
        );
        let ((name, name_at), (url, url_at)) = (name?, url?);
        Some(Written { endpoint: Endpoint::new(name, url), name: name_at, url: url_at })
    }

    /// A value that has no default, with its place; absent is a fault of what it is missing from.
    fn required<T>(
        &mut self,
        whole: &Place,
        path: String,
        raw: Text,
        wanted: &str,
        parse: impl FnOnce(&str) -> Result<T, Reason>,
    ) -> Option<(T, (Place, String))> {
        let (place, result) = match raw {
            Some(text) => (Place::File(text.referenced), parse(&text.value)),
            None => (whole.clone(), Err(Reason::thing("nothing", wanted))),
        };
        let value = self.ok(&place, &path, result)?;
        Some((value, (place, path)))
    }

    fn flagged(&mut self, flags: &[String]) -> Vec<Written> {
        self.check_count(flags.len(), &Place::Flag("--endpoint"), "");
        flags.iter().take(ENDPOINTS_MAX).filter_map(|flag| self.flagged_one(flag)).collect()
    }

    fn flagged_one(&mut self, flag: &str) -> Option<Written> {
        let place = Place::Flag("--endpoint");
        // A URL without a name may hold a secret and an equals sign: it is not repeated.
        let parts = flag.split_once('=').filter(|(name, _)| !name.contains('/'));
        let (name, url) = self.ok(&place, "", parts.ok_or_else(|| Reason::thing("no name", WANTED_FLAG)))?;
        let name = self.ok(&place, "", EndpointName::new(name));
        let path = name.as_ref().map_or_else(String::new, EndpointName::to_string);
        let url = self.ok(&place, &path, EndpointUrl::new(url));
        let at = (place, path);
        Some(Written { endpoint: Endpoint::new(name?, url?), name: at.clone(), url: at })
    }

    fn check_count(&mut self, count: usize, place: &Place, path: &str) {
        if count > ENDPOINTS_MAX {
            self.add(place, path, Reason::thing(count, format_args!("at most {ENDPOINTS_MAX} of them")));
        }
    }

    fn refuse_repeated(&mut self, written: &[Written]) {
        let (mut names, mut addresses) = (HashSet::new(), HashMap::new());
        for Written { endpoint, name: (name_place, name_path), url: (url_place, url_path) } in written {
            if !names.insert(&endpoint.name) {
                let found = Reason::text(endpoint.name.as_str(), "each name once");
                self.add(name_place, name_path, found);
            }
            let earlier = addresses.entry(endpoint.url.address()).or_insert(&endpoint.name);
            if *earlier != &endpoint.name {
                let found =
                    format!("{} of endpoint {}, which is endpoint {earlier}'s", endpoint.url, endpoint.name);
                self.add(url_place, url_path, Reason::thing(found, "each address once"));
            }
        }
    }
}
