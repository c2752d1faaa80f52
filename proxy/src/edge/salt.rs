//! What keeps an isolated tenant's prompts apart from all others': a salt for the engines and a seed for the belief.
//!
//! Both are HMAC-SHA256 of the configured secret over the tenant's name: the same on every replica and after every
//! restart, so that caches stay warm, and not to be guessed by a tenant who knows all names. Whoever knew another's salt
//! could probe the other's prompts by the time to first token. Never here: a log of either.

use config::Secret;
use ring::hmac::{HMAC_SHA256, Key, sign};

/// An isolated tenant's salt and seed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Isolation {
    cache_salt: String,
    seed: Vec<u8>,
}

impl Isolation {
    /// Of a tenant, under the secret of the configuration.
    pub(crate) fn new(secret: &Secret, tenant: &str) -> Self {
        let key = Key::new(HMAC_SHA256, secret.expose());
        // Two uses, two messages: who sees the salt in an engine's log knows nothing of the seed.
        let made =
            |purpose: &str| sign(&key, [purpose.as_bytes(), b"\0", tenant.as_bytes()].concat().as_slice());
        let cache_salt = made("cache_salt").as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { cache_salt, seed: made("identity").as_ref().to_vec() }
    }

    /// For `cache_salt` in the body: 64 hexadecimal digits, which need no escaping in JSON.
    pub(crate) fn cache_salt(&self) -> &str {
        &self.cache_salt
    }

    /// For [`picker::decide::Ask::tenant`]: 32 bytes.
    pub(crate) fn seed(&self) -> &[u8] {
        &self.seed
    }
}

impl std::fmt::Debug for Isolation {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Isolation(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(secret: &str, tenant: &str) -> Isolation {
        Isolation::new(&Secret::new(secret), tenant)
    }

    /// Made with Python's hmac: a changed salt would empty every cache of every isolated tenant.
    #[test]
    fn a_salt_is_the_same_for_ever() {
        assert_eq!(
            of("secret", "team-a").cache_salt(),
            "8a13329386b89278bda448c7807f79175a36e50f9b86fccdbf288e5916bcc2fb"
        );
        assert_eq!(of("secret", "team-a"), of("secret", "team-a"));
    }

    #[test]
    fn nothing_is_shared() {
        let ours = of("secret", "team-a");
        for (shows, other) in
            [("another tenant", of("secret", "team-b")), ("another secret", of("secret2", "team-a"))]
        {
            assert_ne!(ours.cache_salt(), other.cache_salt(), "{shows}");
            assert_ne!(ours.seed(), other.seed(), "{shows}");
        }
        let seed: String = ours.seed().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_ne!(ours.cache_salt(), seed, "the seed is not the salt");
        assert!(!format!("{ours:?}").contains(&ours.cache_salt()[..8]), "not shown");
    }
}
