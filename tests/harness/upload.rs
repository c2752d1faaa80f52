//! The ways in which a client can send a body.

use crate::client::{Client, Response, post, post_head};
use crate::h2_client::H2Client;
use crate::router::Router;
use crate::script::chunked;
use crate::wait::within;
use bytes::Bytes;
use std::time::Duration;

const PATH: &str = "/v1/chat/completions";

/// How the client sends a body.
#[derive(Clone, Copy, Debug)]
pub enum Upload {
    /// HTTP/1.1 with a content-length.
    Length,
    /// HTTP/1.1, chunked.
    Chunked,
    /// HTTP/1.1 with a content-length, after the 100 that it expects.
    Expect,
    /// HTTP/2 with a content-length.
    H2Length,
    /// HTTP/2 without one.
    H2Open,
}

impl Upload {
    /// Whether it needs the h2c listener.
    pub fn is_h2(self) -> bool {
        matches!(self, Self::H2Length | Self::H2Open)
    }
}

/// Posts a chat body in this way, on a connection of its own.
pub async fn upload(router: &Router, upload: Upload, body: &str) -> Response {
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    match upload {
        Upload::H2Length => H2Client::connect(router.h2c).await.post(PATH, bytes, true).await,
        Upload::H2Open => H2Client::connect(router.h2c).await.post(PATH, bytes, false).await,
        Upload::Length => answer_to(router, &[post(PATH, body).into()]).await,
        Upload::Chunked => {
            let head = post_head(PATH, "transfer-encoding: chunked\r\n").into();
            let parts =
                [head].into_iter().chain(bytes.chunks(10_000).map(chunked)).chain(["0\r\n\r\n".into()]);
            answer_to(router, &parts.collect::<Vec<_>>()).await
        }
        Upload::Expect => upload_when_told(router, body).await,
    }
}

/// Sends what the router takes, then reads the answer: an early one may cut the upload short.
async fn answer_to(router: &Router, parts: &[Bytes]) -> Response {
    let mut client = Client::connect(router.data).await;
    for part in parts {
        if client.try_send(part).await.is_err() {
            break;
        }
    }
    client.response("POST").await
}

/// The client that waits for the 100 before its body.
async fn upload_when_told(router: &Router, body: &str) -> Response {
    let mut client = Client::connect(router.data).await;
    client
        .send(post_head(PATH, &format!("content-length: {}\r\nexpect: 100-continue\r\n", body.len())))
        .await;
    let told = within("100 Continue", Duration::from_secs(1), client.head()).await;
    assert_eq!(told.status(), 100, "{told:?}");
    client.send(body).await;
    client.response("POST").await
}
