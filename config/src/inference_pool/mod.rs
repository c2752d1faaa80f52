//! A Kubernetes InferencePool and its Pods, resolved to endpoints: for `prefixroute pool`.
//!
//! A pool is checked as the cluster would check it, in the words of its CRD, but with every problem and where it stands.
//! Source: kubernetes-sigs/gateway-api-inference-extension, `config/crd/bases`, 84436a9 (August 2026). Which pods are
//! endpoints, and of which ports, is llm-d's endpoint picker's rule.

mod field;
mod labels;
mod objects;
mod pods;
mod spec;

use std::fmt;
use std::net::SocketAddr;

use crate::EndpointName;
use crate::faults::{Fault, Faults, Reason};
use crate::tree::{self, Bounds};

/// A pool that holds, with the endpoints of its pods that are ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferencePool {
    /// The namespace of the pool and of its pods.
    pub namespace: String,
    /// The pool's name.
    pub name: String,
    /// Whether its pods want HTTP/2 in clear text, which `serve` does not speak to engines.
    pub h2c: bool,
    /// In the order of the pods, then of the ports.
    pub endpoints: Vec<PodEndpoint>,
}

/// One port of a pod. Prints as `NAME=URL`, which `serve --endpoint` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEndpoint {
    /// The pod's name, with `-rank-N` where the pool has several ports.
    pub name: EndpointName,
    /// The pod's address and the port.
    pub address: SocketAddr,
}

/// Resolves a text that holds one InferencePool and any number of Pods: YAML or JSON, one document or several, lists of
/// them. What else it holds is passed over. `file` names it in faults.
///
/// Errors: all problems at once; one if it is no YAML.
pub fn resolve(file: &str, text: &str) -> Result<InferencePool, Faults> {
    let read = tree::documents_within(file, text, Bounds::OBJECTS)?;
    let mut faults = read.faults;
    let found = objects::collect(file, &read.nodes, &mut faults);
    let Some((pool, others)) = found.pools.split_first() else {
        faults.add(Fault::of_file(file, Reason::thing("no InferencePool", "one")));
        return Err(faults);
    };
    for other in others {
        let name = other.metadata().map_or("", |metadata| metadata.name);
        faults.add_at(file, other.node.at, "kind", Reason::text(name, "one InferencePool"));
    }
    let selection = spec::check(file, pool, &mut faults);
    let endpoints = selection.as_ref().map(|wanted| pods::endpoints(file, wanted, &found.pods, &mut faults));
    match (selection, endpoints) {
        (Some(selection), Some(endpoints)) if faults.is_empty() => Ok(InferencePool {
            namespace: selection.namespace.to_owned(),
            name: selection.name.to_owned(),
            h2c: selection.h2c,
            endpoints,
        }),
        _ => Err(faults),
    }
}

impl fmt::Display for PodEndpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}=http://{}", self.name, self.address)
    }
}
