//! Pods to endpoints.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use picker::chance::mix;

use super::PodEndpoint;
use super::field::{Field, shown};
use super::objects::{Metadata, Object};
use super::spec::Selection;
use crate::EndpointName;
use crate::defaults::ENDPOINT_NAME_BYTES_MAX;
use crate::faults::Faults;

/// The annotation, by its name of today and that of before, that names those of a pool's ports that a pod serves.
const ACTIVE_PORTS: [&str; 2] = ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"];
/// Bytes of the digest that a long name ends with.
const DIGEST_BYTES: usize = 16;

/// The endpoints of the pods that are the pool's and are ready, one for each port; as in the cluster, at the pod's first
/// address. No pod may stand there twice, and no two may have one address.
pub(super) fn endpoints(
    file: &str,
    pool: &Selection<'_>,
    pods: &[Object<'_>],
    faults: &mut Faults,
) -> Vec<PodEndpoint> {
    let (mut names, mut addresses) = (HashSet::new(), HashSet::new());
    let mut endpoints = Vec::new();
    for pod in pods {
        let Some(metadata) = pod.metadata().filter(|metadata| metadata.namespace == pool.namespace) else {
            continue;
        };
        if !names.insert(metadata.name) {
            repeated(file, &metadata, faults);
            continue;
        }
        if !is_selected(pool, &metadata) || !is_ready(pod, &metadata) {
            continue;
        }
        let Some(address) = address(file, pod, faults) else { continue };
        if !addresses.insert(address) {
            let words = format!("Duplicate value: \"{address}\"");
            problem(file, pod, words, faults);
            continue;
        }
        match of_pod(pool, &metadata, address) {
            Some(of_pod) => endpoints.extend(of_pod),
            None => wrong_name(file, &metadata, faults),
        }
    }
    endpoints
}

fn repeated(file: &str, metadata: &Metadata<'_>, faults: &mut Faults) {
    let field = Field::new(metadata.node, "metadata.name");
    let name = shown(&format!("{}/{}", metadata.namespace, metadata.name));
    field.problem(file, format!("Duplicate value: {name}"), faults);
}

fn wrong_name(file: &str, metadata: &Metadata<'_>, faults: &mut Faults) {
    let field = Field::new(metadata.node, "metadata.name");
    let words = format!("Invalid value: {}: must be a lowercase RFC 1123 subdomain", shown(metadata.name));
    field.problem(file, words, faults);
}

fn problem(file: &str, pod: &Object<'_>, words: String, faults: &mut Faults) {
    if let Some(field) = pod.root().get("status").and_then(|status| status.get("podIP")) {
        field.problem(file, words, faults);
    }
}

fn is_selected(pool: &Selection<'_>, pod: &Metadata<'_>) -> bool {
    let labels = Field::new(pod.node, "").get("labels");
    let has = |key, value| labels.as_ref().and_then(|labels| labels.text(key)) == Some(value);
    pool.labels.iter().all(|&(key, value)| has(key, value))
}

/// Whether it says that it is ready, and is not about to go.
fn is_ready(pod: &Object<'_>, metadata: &Metadata<'_>) -> bool {
    let conditions = pod.root().get("status").and_then(|status| status.get("conditions"));
    let conditions = conditions.and_then(Field::items).unwrap_or_default();
    let is_ready = |condition: &Field<'_>| {
        condition.text("type") == Some("Ready") && condition.text("status") == Some("True")
    };
    let leaves = Field::new(metadata.node, "").get("deletionTimestamp").is_some();
    !leaves && conditions.iter().any(|node| is_ready(&Field::new(node, "")))
}

/// The first of its addresses; none before it has one.
fn address(file: &str, pod: &Object<'_>, faults: &mut Faults) -> Option<IpAddr> {
    let text = pod.root().get("status")?.text("podIP").filter(|text| !text.is_empty())?;
    let address = text.parse().ok();
    if address.is_none() {
        let words = format!("Invalid value: {}: must be a valid IP address", shown(text));
        problem(file, pod, words, faults);
    }
    address
}

/// Nothing for a pod whose name is none.
fn of_pod(pool: &Selection<'_>, pod: &Metadata<'_>, address: IpAddr) -> Option<Vec<PodEndpoint>> {
    let annotations = Field::new(pod.node, "").get("annotations");
    let active =
        annotations.and_then(|annotations| ACTIVE_PORTS.iter().find_map(|key| annotations.text(key)));
    let is_active =
        |port: u16| active.is_none_or(|ports| ports.split(',').any(|text| text.trim().parse() == Ok(port)));
    let ports = pool.ports.iter().copied().enumerate().filter(|&(_, port)| is_active(port));
    let rank = |rank: usize| if pool.ports.len() > 1 { format!("-rank-{rank}") } else { String::new() };
    let endpoint = |(index, port)| {
        let name = name(pod.name, &rank(index))?;
        Some(PodEndpoint { name, address: SocketAddr::new(address, port) })
    };
    ports.map(endpoint).collect()
}

/// The pod's name, which is longer than an endpoint's may be at worst: then its beginning, and a digest of all of it.
/// Nothing for what is no pod's name.
fn name(pod: &str, rank: &str) -> Option<EndpointName> {
    let whole = format!("{pod}{rank}");
    if whole.len() <= ENDPOINT_NAME_BYTES_MAX {
        return EndpointName::new(&whole).ok();
    }
    let room = ENDPOINT_NAME_BYTES_MAX - rank.len() - DIGEST_BYTES - 1;
    let beginning = pod.get(..room.min(pod.len()))?;
    let digest = pod.bytes().fold(0, |digest, byte| mix(digest ^ u64::from(byte)));
    EndpointName::new(&format!("{beginning}-{digest:016x}{rank}")).ok()
}
