//! One page from an engine that the router reads on its own behalf: its metrics, its models.

use std::time::Duration;

use tokio::time::timeout;

use crate::pool::{Member, Pool};
use crate::upstream::{ConnectError, ExchangeError, Request, Upstream};

/// What a page may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) bytes_max: usize,
    /// From the first step to the last byte.
    pub(super) limit: Duration,
}

/// Why there is no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PageError {
    #[error("host name does not resolve")]
    Resolve,
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Exchange(#[from] ExchangeError),
    #[error("status {0}, wanted 200")]
    Status(u16),
    #[error("page over {0} bytes")]
    TooLong(usize),
    #[error("page broke off")]
    Broken,
    #[error("not whole after {0:?}")]
    Timeout(Duration),
}

impl PageError {
    /// Whether the endpoint takes no connection at all.
    pub(super) fn is_unreachable(self) -> bool {
        matches!(self, Self::Resolve | Self::Connect(_) | Self::Exchange(ExchangeError::Tls(_)))
    }
}

/// Asks an endpoint for a page, and reads it into `page` where its status is 200; `asked` is called between connecting and
/// asking.
pub(super) async fn read(
    pool: &Pool,
    member: &Member,
    path: &str,
    page: &mut Vec<u8>,
    bounds: Bounds,
    asked: impl FnOnce(),
) -> Result<(), PageError> {
    let head = member.endpoint.get(path, &member.credentials);
    let read = whole(&pool.scraper, member, &head, page, bounds, asked);
    timeout(bounds.limit, read).await.unwrap_or(Err(PageError::Timeout(bounds.limit)))
}

async fn whole(
    scraper: &Upstream,
    member: &Member,
    head: &[u8],
    page: &mut Vec<u8>,
    Bounds { bytes_max, limit }: Bounds,
    asked: impl FnOnce(),
) -> Result<(), PageError> {
    let transport = member.transport().await.ok_or(PageError::Resolve)?;
    // An old connection proves nothing of an endpoint that takes no new ones.
    let connection = match member.endpoint.reachable() {
        true => scraper.connect(transport).await?,
        false => scraper.connect_anew(transport).await?,
    };
    asked();
    let mut answer =
        scraper.exchange(connection, Request { head, body: b"", bodiless: false }, limit).await?;
    let status = answer.session.get_status().map_or(0, |status| status.as_u16());
    page.clear();
    while let Some(chunk) = answer.session.read_body_ref().await.map_err(|_| PageError::Broken)? {
        if page.len() + chunk.len() > bytes_max {
            return Err(PageError::TooLong(bytes_max));
        }
        page.extend_from_slice(chunk);
    }
    scraper.release(answer).await;
    if status == 200 { Ok(()) } else { Err(PageError::Status(status)) }
}
