//! What an image, audio or video part is, and what it is worth in tokens.
//!
//! The worth decides only how much of a prompt's length a shared picture counts for; the engine's own number
//! depends on the model. So these are estimates, bounded, and only the content's hash has to be exact.

use xxhash_rust::xxh3::Xxh3;

use crate::read::{Broken, json};
use crate::tokens::Media;

/// Pixels of one image token: 28 x 28 patches merged two by two is the common case (Qwen2-VL and later).
const PIXELS_PER_TOKEN: u32 = 28 * 28;
/// What an image is worth that cannot be measured: 640 x 360 at one token per 32 x 32 pixels, as llm-d assumes.
const IMAGE_TOKENS: u32 = 225;
/// Audio is assumed to be 16 kHz, 16 bit, mono at 50 tokens a second.
const AUDIO_BYTES_PER_TOKEN: usize = 640;
/// A video of ten seconds, two frames a second, each like an image of unknown size and halved by merging.
const VIDEO_TOKENS: u32 = 2_250;
/// No single part counts for more.
const TOKENS_MAX: u32 = 16_384;

/// The kinds of parts that stand as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Image,
    Audio,
    Video,
}

/// Sources: OpenAI chat and responses, Anthropic messages, vLLM's multimodal inputs.
const TYPES: [(&str, Kind); 11] = [
    ("image_url", Kind::Image),
    ("input_image", Kind::Image),
    ("image", Kind::Image),
    ("image_pil", Kind::Image),
    ("image_embeds", Kind::Image),
    ("input_audio", Kind::Audio),
    ("audio_url", Kind::Audio),
    ("audio", Kind::Audio),
    ("video_url", Kind::Video),
    ("input_video", Kind::Video),
    ("video", Kind::Video),
];

impl Kind {
    /// By the part's `type`, as it stands in the JSON.
    pub(super) fn of(part_type: &[u8]) -> Option<Self> {
        TYPES.iter().find(|(name, _)| json::is_name(part_type, name)).map(|&(_, kind)| kind)
    }
}

/// The media in a part: `raw` is the part's JSON, of which everything counts as content.
///
/// HOT for image traffic: data of megabytes is hashed once, without unescaping where it has no escapes.
pub(super) fn media(kind: Kind, raw: &[u8]) -> Result<Media, Broken> {
    let mut content = Xxh3::new();
    json::compact(raw, |piece| content.update(piece));
    let data = longest_string(raw)?;
    let tokens = match kind {
        Kind::Image => image_tokens(data),
        Kind::Audio => u32::try_from(data.len() * 3 / 4 / AUDIO_BYTES_PER_TOKEN).unwrap_or(TOKENS_MAX),
        Kind::Video => VIDEO_TOKENS,
    };
    Ok(Media { content: content.digest(), tokens: tokens.clamp(1, TOKENS_MAX) })
}

/// The URL or the data of a part: the longest string in it, one level down at most.
fn longest_string(part: &[u8]) -> Result<&[u8], Broken> {
    fn longer<'a>(best: &mut &'a [u8], value: &'a [u8]) {
        if value.first() == Some(&b'"') && value.len() > best.len() {
            *best = value;
        }
    }
    let mut best: &[u8] = b"";
    json::each_member(part, |_, value| {
        if value.first() == Some(&b'{') {
            json::each_member(value, |_, inner| {
                longer(&mut best, inner);
                Ok(())
            })?;
        }
        longer(&mut best, value);
        Ok(())
    })?;
    Ok(best)
}

/// From the size in a PNG's header, else a fixed guess.
fn image_tokens(data: &[u8]) -> u32 {
    let png = memchr::memmem::find(&data[..data.len().min(64)], b"iVBORw0KGgo");
    let size = png.and_then(|at| data.get(at + 20..at + 32)).and_then(base64_12);
    match size {
        // Bytes 15..24 of the file: the last of "IHDR", then width and height.
        Some([_, size @ ..]) => {
            let [width, height] =
                [&size[..4], &size[4..]].map(|be| be.iter().fold(0, |n, &b| n << 8 | u32::from(b)));
            (width.saturating_mul(height) / PIXELS_PER_TOKEN).max(1)
        }
        None => IMAGE_TOKENS,
    }
}

/// Twelve base64 digits are nine bytes.
fn base64_12(digits: &[u8]) -> Option<[u8; 9]> {
    let mut bytes = [0; 9];
    for (group, out) in digits.chunks_exact(4).zip(bytes.chunks_exact_mut(3)) {
        let value = group.iter().try_fold(0u32, |value, &digit| Some(value << 6 | sextet(digit)?))?;
        out.copy_from_slice(&value.to_be_bytes()[1..]);
    }
    Some(bytes)
}

fn sextet(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn image(url: &str) -> Media {
        media(Kind::Image, format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#).as_bytes())
            .unwrap()
    }

    #[test]
    fn a_png_is_worth_its_pixels() {
        // The header of a PNG of 1120 x 560 pixels.
        let png = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAABGAAAAIwCAIAAAA=";
        assert_eq!(image(png).tokens, 1120 * 560 / PIXELS_PER_TOKEN);
    }

    #[test]
    fn other_images_are_worth_a_guess() {
        for url in [
            "https://x.test/a.png",
            "data:image/jpeg;base64,/9j/4AAQ",
            "iVBORw0KGgo",
            "iVBORw0KGgo****************************",
        ] {
            assert_eq!(image(url).tokens, IMAGE_TOKENS, "{url}");
        }
    }

    #[test]
    fn content_decides_the_hash() {
        assert_eq!(image("a").content, image("a").content);
        assert_ne!(image("a").content, image("b").content);
    }

    #[test]
    fn no_part_weighs_without_bound() {
        let data = "A".repeat(30 << 20);
        let part = format!(r#"{{"type":"input_audio","input_audio":{{"data":"{data}","format":"wav"}}}}"#);
        assert_eq!(media(Kind::Audio, part.as_bytes()).unwrap().tokens, TOKENS_MAX);
    }
}
