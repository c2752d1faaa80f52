//! The command `disagg`: reads shapes, computes and prints.

use std::io::{self, Write};

use super::args::DisaggArgs;
use super::hf_config;
use super::report::{ModelReport, Report};
use super::shape::{ModelShape, Preset, Weights};
use super::text::text;

/// Why there is nothing to show, or not all.
#[derive(Debug, thiserror::Error)]
pub enum DisaggError {
    /// Options have no meaning, each told in a line.
    #[error("{}", .0.join("\n"))]
    Options(Vec<String>),
    /// Files tell no shape, or a model does not run on so many GPUs, each told in a line. The rest is printed.
    #[error("{}", .0.join("\n"))]
    Models(Vec<String>),
    /// The result could not be written.
    #[error("disagg: {0}")]
    Io(#[from] io::Error),
}

impl DisaggError {
    /// Whether the operator gave something wrong; else the command failed while it ran.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Options(_) | Self::Models(_) => true,
            Self::Io(_) => false,
        }
    }
}

/// Writes the answer, as text or JSON, to `out`. Of a model that is not known it has what needs no model.
pub fn run(args: &DisaggArgs, out: &mut dyn Write) -> Result<(), DisaggError> {
    let question = args.question().map_err(DisaggError::Options)?;
    let models = models(args);
    let report = Report::of(&question, &models, args.explain);
    let text = match args.json {
        // String keys and finite numbers only: it cannot fail.
        true => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
        false => text(&question, &report),
    };
    out.write_all(text.as_bytes())?;
    out.flush()?;
    let error = |model: &ModelReport| Some(format!("{}: {}", model.model, model.error.as_ref()?));
    let mut unknown: Vec<String> = report.models.iter().filter_map(error).collect();
    unknown.dedup(); // a file is told once, whatever the sizes of a replica
    if unknown.is_empty() { Ok(()) } else { Err(DisaggError::Models(unknown)) }
}

/// The preset first, then the files in their order; of what cannot be read, its name and why.
fn models(args: &DisaggArgs) -> Vec<Result<ModelShape, (String, String)>> {
    let preset = args.model.or_else(|| args.configs.is_empty().then_some(Preset::Llama8b));
    let preset = preset.map(|preset| Ok(preset_shape(preset, args)));
    let files = args.configs.iter().map(|path| {
        let error = |error: hf_config::ConfigError| (path.display().to_string(), error.to_string());
        hf_config::read(path, args.sizes()).map_err(error)
    });
    preset.into_iter().chain(files).collect()
}

fn preset_shape(preset: Preset, args: &DisaggArgs) -> ModelShape {
    let hf_config::Sizes { bytes_per_value, bytes_per_parameter, weights_gb } = args.sizes();
    let shape = preset.shape(bytes_per_parameter.unwrap_or(2.0));
    let told = weights_gb.map(|gb| Weights { bytes: gb * 1e9, source: format!("{gb} x 1e9") });
    ModelShape {
        bytes_per_value: bytes_per_value.unwrap_or(shape.bytes_per_value),
        weights: told.or(shape.weights),
        ..shape
    }
}
