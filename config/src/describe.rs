//! What the reading says of its keys, for people and for editors: the JSON Schema, the table of keys, and the effective
//! configuration with the origin of each value.

use serde_json::{Map, Value, json};

use crate::Setting;
use crate::check::described;
use crate::defaults::EXPLAIN_COLUMN_MAX;
use crate::read::{BELOW, DefaultOf, Described, Reload, Shape};

/// The JSON Schema (draft 2020-12) of the configuration file, indented, with a final line feed.
pub fn schema() -> String {
    let mut schema = shape_schema(&described());
    if let Value::Object(members) = &mut schema {
        members.insert("$schema".to_owned(), "https://json-schema.org/draft/2020-12/schema".into());
        members.insert("title".to_owned(), "prefixroute".into());
    }
    format!("{:#}\n", sorted(schema))
}

/// The table of all keys, in Markdown.
pub fn key_table() -> String {
    let mut table = "| key | default | range | reload | what it does |\n|---|---|---|---|---|\n".to_owned();
    described().visit("", &mut |path, described| {
        let Described { key, default, shape } = described;
        let default = match default {
            DefaultOf::Value(value) => format!("`{value}`"),
            DefaultOf::Words(words) => (*words).to_owned(),
            DefaultOf::Required => "**required**".to_owned(),
        };
        let reload = match key.reload {
            Reload::Live => "live",
            Reload::Restart => "restart",
        };
        let range = shape.range().replace('*', "\\*").replace('|', "\\|");
        table.push_str(&format!("| `{path}` | {default} | {range} | {reload} | {} |\n", key.about));
    });
    table
}

/// The paths of the keys whose change needs a restart, with `[]` for each item of a list, such as
/// `listeners[].address`.
pub fn restart_keys() -> Vec<String> {
    let mut paths = Vec::new();
    described().visit("", &mut |path, described| {
        if described.key.reload == Reload::Restart {
            paths.push(path.to_owned());
        }
    });
    paths
}

/// The effective configuration, one value a line: `key: value  # origin`.
pub fn explain(settings: &[Setting]) -> String {
    let line = |setting: &Setting| format!("{}: {}", setting.path, setting.value);
    let widths = settings.iter().map(|setting| line(setting).chars().count());
    let width = widths.filter(|width| *width <= EXPLAIN_COLUMN_MAX).max().unwrap_or(0);
    let lines = settings.iter().map(|setting| format!("{:width$}  # {}\n", line(setting), setting.origin));
    lines.collect()
}

fn shape_schema(shape: &Shape) -> Value {
    match shape {
        Shape::Value { schema, .. } => schema.clone(),
        Shape::List { min, max, of } => {
            json!({"type": "array", "minItems": min, "maxItems": max, "items": shape_schema(of)})
        }
        Shape::Table { max, of, .. } => {
            json!({"type": "object", "maxProperties": max, "additionalProperties": shape_schema(of)})
        }
        Shape::Section(keys) => {
            let properties: Map<String, Value> =
                keys.iter().map(|described| (described.key.name.to_owned(), key_schema(described))).collect();
            let required = keys.iter().filter(|described| described.default == DefaultOf::Required);
            let required: Vec<&str> = required.map(|described| described.key.name).collect();
            let mut schema =
                json!({"type": "object", "additionalProperties": false, "properties": properties});
            if !required.is_empty() {
                schema["required"] = json!(required);
            }
            schema
        }
    }
}

fn key_schema(described: &Described) -> Value {
    let Described { key, default, shape } = described;
    let mut schema = shape_schema(shape);
    let mut about = format!("{}.", key.about);
    match default {
        DefaultOf::Value(value) => schema["default"] = typed(value, &schema),
        DefaultOf::Words(words) if *words == BELOW => {}
        DefaultOf::Words(words) => about.push_str(&format!(" Default: {words}.")),
        DefaultOf::Required => {}
    }
    if key.reload == Reload::Restart {
        about.push_str(" A change needs a restart.");
    }
    schema["description"] = about.into();
    schema
}

/// A default as a value of the type that the schema wants.
fn typed(value: &str, schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("boolean" | "integer" | "number") => {
            serde_json::from_str(value).unwrap_or_else(|_| value.into())
        }
        _ => value.into(),
    }
}

/// Members in the order of their names, whatever another crate has made of `serde_json`'s order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: Vec<(String, Value)> = members.into_iter().collect();
            members.sort_by(|one, other| one.0.cmp(&other.0));
            Value::Object(members.into_iter().map(|(name, member)| (name, sorted(member))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        single => single,
    }
}
