//! A bare pass-through on pingora's ProxyHttp, round robin over the given upstreams: what a proxy that reads nothing costs.
//!
//! `baseline LISTEN UPSTREAM...`, each an address; one worker thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

struct PassThrough {
    upstreams: Vec<SocketAddr>,
    turn: AtomicUsize,
}

#[async_trait]
impl ProxyHttp for PassThrough {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> pingora_core::Result<Box<HttpPeer>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let upstream = self.upstreams[turn % self.upstreams.len()];
        Ok(Box::new(HttpPeer::new(upstream, false, String::new())))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().expect("baseline LISTEN UPSTREAM...");
    let upstreams: Vec<SocketAddr> =
        arguments.map(|upstream| upstream.parse().expect("an address")).collect();
    assert!(!upstreams.is_empty(), "baseline LISTEN UPSTREAM...");
    let conf = ServerConf { threads: 1, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let proxy = PassThrough { upstreams, turn: AtomicUsize::new(0) };
    let mut service = http_proxy_service(&server.configuration, proxy);
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}
