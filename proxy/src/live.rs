//! One configuration at work. A reload builds the next one beside it and swaps it in as a whole.

use std::sync::Arc;

use config::Config;
use picker::belief::JoinError;

use crate::endpoints::Endpoint;
use crate::pool::Pool;

/// A configuration and what was built from it. Never changed, only replaced.
pub(crate) struct Live {
    /// 1 for the one that the router started with.
    pub(crate) version: u64,
    pub(crate) config: Config,
    /// In the order of the configuration.
    pub(crate) pools: Vec<Arc<Pool>>,
}

impl Live {
    /// What a router starts with. Errors: an index that cannot be had.
    pub(crate) fn first(config: Config) -> Result<Self, JoinError> {
        Self::build(config, 1, None)
    }

    /// The next one. Pools of the same name keep what they know, and their endpoints. Nothing is changed that requests see.
    /// Errors: an index that cannot be had.
    pub(crate) fn after(&self, config: Config) -> Result<Self, JoinError> {
        Self::build(config, self.version + 1, Some(self))
    }

    fn build(config: Config, version: u64, before: Option<&Self>) -> Result<Self, JoinError> {
        let pool = |pool: &config::Pool| {
            let before = before.and_then(|before| before.pool(&pool.name));
            Pool::build(pool.clone(), before.map(Arc::as_ref)).map(Arc::new)
        };
        let pools = config.pools.iter().map(pool).collect::<Result<_, _>>()?;
        Ok(Self { version, config, pools })
    }

    /// The pool of that name.
    pub(crate) fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| pool.config.name == name)
    }

    /// All endpoints with their pools, in the order of the configuration.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = (&Arc<Pool>, &Arc<Endpoint>)> {
        self.pools.iter().flat_map(|pool| pool.endpoints().map(move |endpoint| (pool, endpoint)))
    }
}
