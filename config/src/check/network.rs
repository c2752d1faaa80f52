//! Where clients come from and where they may go: networks, origins, paths.

use std::net::IpAddr;

use url::Url;

use crate::defaults::PATH_BYTES_MAX;
use crate::faults::Reason;
use crate::read::form::Text;
use crate::{Network, PathPattern};

const WANTED_NETWORK: &str = "an address or a network, such as 10.0.0.0/8";
/// Proxies that are believed.
pub(super) const PROXY: Text<Network> = Text {
    wanted: WANTED_NETWORK,
    pattern: "^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$",
    read: network,
    show: |network| format!("{}/{}", network.address, network.prefix),
};

fn network(text: &str) -> Result<Network, Reason> {
    let wrong = || Reason::text(text, WANTED_NETWORK);
    let (address, prefix) =
        text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        None => bits,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().map_err(|_| wrong())?
        }
        Some(_) => return Err(wrong()),
    };
    if prefix > bits {
        return Err(wrong());
    }
    let network = Network { address: first(address, prefix), prefix };
    if network.address != address {
        let wanted = format_args!("{}/{prefix}, the first address of that network", network.address);
        return Err(Reason::text(text, wanted));
    }
    Ok(network)
}

/// The first address that shares so many bits.
fn first(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

const WANTED_ORIGIN: &str = "* or an origin, such as https://app.example";
/// Origins of browsers.
pub(super) const ORIGIN: Text<String> = Text {
    wanted: WANTED_ORIGIN,
    pattern: "^(\\*|[a-z][a-z0-9+.-]*://[^/?#@]+)$",
    read: origin,
    show: String::clone,
};

/// Exactly as a browser writes it: nothing else would ever be equal.
fn origin(text: &str) -> Result<String, Reason> {
    let as_sent = || Url::parse(text).ok().map(|url| url.origin().ascii_serialization());
    if text == "*" || as_sent().is_some_and(|sent| sent == text) {
        return Ok(text.to_owned());
    }
    Err(Reason::text(text, WANTED_ORIGIN))
}

const WANTED_PATH: &str = "a path such as /v1/models or /v1/*";
/// Paths that are served.
pub(super) const PATH: Text<PathPattern> =
    Text { wanted: WANTED_PATH, pattern: "^/[^*?#]*\\*?$", read: path, show: |pattern| pattern.0.clone() };

/// Decoded, without segments of dots: as a request's path is when it is compared.
fn path(text: &str) -> Result<PathPattern, Reason> {
    let fixed = text.strip_suffix('*').unwrap_or(text);
    let odd = |letter: char| letter.is_control() || matches!(letter, '*' | '?' | '#' | '%' | '\\');
    let dots = fixed.split('/').any(|segment| matches!(segment, "." | ".."));
    if text.starts_with('/') && text.len() <= PATH_BYTES_MAX && !fixed.contains(odd) && !dots {
        return Ok(PathPattern(text.to_owned()));
    }
    Err(Reason::text(text, WANTED_PATH))
}
