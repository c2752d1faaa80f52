//! The real proxy for the laboratory: in this process, on free ports of loopback.

use std::time::Duration;

use bench::demo::{Router, RouterError, RunningRouter};
use config::Flags;
use tokio::runtime::Handle;

use crate::reload::Read;
use crate::serve;

/// Time for the endpoints to answer a first scrape.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// The fake replicas count in `words` tokens and blocks of 16, and their prompts are short: so does the router, or a
/// block of 256 bytes would blur where a tenant's 195 tokens end.
const WORDS: (&str, &str) = ("laboratory", "pools: [{index: {tokenizer: words}}]");

/// Starts routers in this process.
pub struct InProcess(Option<(&'static str, &'static str)>);

impl InProcess {
    /// Routers that cut prompts as fake servers do.
    pub const fn words() -> Self {
        Self(Some(WORDS))
    }

    /// Routers with the defaults of `serve`.
    pub const fn defaults() -> Self {
        Self(None)
    }
}

impl Router for InProcess {
    async fn start(
        &self,
        policy: &str,
        endpoints: &[(String, String)],
    ) -> Result<RunningRouter, RouterError> {
        let anywhere = || Some("127.0.0.1:0".to_owned());
        let named = endpoints.iter().map(|(name, url)| format!("{name}={url}")).collect();
        let policy = Some(policy.to_owned());
        let flags =
            Flags { endpoints: named, policy, listen: anywhere(), admin: anywhere(), ..Flags::default() };
        let read = Read::once(config::load(self.0, &flags, &config::System)?);
        let running = serve::start(read, &Handle::current(), &Handle::current())?;
        let all = tokio::time::timeout(READY_WITHIN, running.all_answer()).await;
        // Those that answer are measured all the same: the laboratory says of the others that they do not.
        if all.is_err() && !running.any_answers() {
            return Err(format!("none of the {} endpoints answers", endpoints.len()).into());
        }
        let url = format!("http://{}", running.listeners[0]);
        Ok(RunningRouter::new(url, async move {
            running.drain().await;
        }))
    }
}
