//! How an address is shown: without the user and the password that it may hold.

use reqwest::Url;

/// The address to print. Of one that no client can read, all before the last `@` goes, as its password may hold a `/`;
/// what has no scheme stays as it is.
pub(crate) fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = match Url::parse(url) {
        Ok(_) => rest.find(['/', '?', '#']).unwrap_or(rest.len()),
        Err(_) => rest.len(),
    };
    let host = rest[..end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[host..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_holds_no_password() {
        for (url, want) in [
            ("http://h:1/metrics", "http://h:1/metrics"),
            ("http://user:SECRET@h:1", "http://h:1"),
            ("https://SECRET@h/a@b?c=d@e", "https://h/a@b?c=d@e"),
            ("http://user:SEC@RET@h?a", "http://h?a"),
            ("http://user:SEC/RET@h:1/metrics", "http://h:1/metrics"),
            ("saved/a@b.txt", "saved/a@b.txt"),
        ] {
            assert_eq!(shown(url), want);
        }
    }
}
