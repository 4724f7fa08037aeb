//! The templates of the page, filled.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, UndefinedBehavior, context};
use serde::Serialize;

use super::{PageData, View};
use crate::error::Result;

const TEMPLATES: [(&str, &str); 5] = [
    ("runs.html", include_str!("../../assets/runs.html")),
    ("page.html", include_str!("../../assets/page.html")),
    ("summary.html", include_str!("../../assets/summary.html")),
    ("events.html", include_str!("../../assets/events.html")),
    ("memory.html", include_str!("../../assets/memory.html")),
];

/// The library of charts with its licence, then the page's own scripts in the order in which they use each other.
const SCRIPTS: [&str; 6] = [
    "/*\n",
    include_str!("../../assets/uplot/LICENSE"),
    "*/\n",
    include_str!("../../assets/uplot/uPlot.iife.min.js"),
    include_str!("../../assets/theme.js"),
    include_str!("../../assets/chart.js"),
];

/// Additional parts of the page of one run.
const OF_ONE: [&str; 4] = [
    include_str!("../../assets/rows.js"),
    include_str!("../../assets/heat.js"),
    include_str!("../../assets/timeline.js"),
    include_str!("../../assets/page.js"),
];

/// Additional parts of the page of many runs.
const OF_MANY: &str = include_str!("../../assets/runs.js");

const STYLES: [&str; 2] =
    [include_str!("../../assets/uplot/uPlot.min.css"), include_str!("../../assets/page.css")];

/// The whole page.
pub fn page(view: &View<'_>, data: &PageData) -> Result<String> {
    let (script, style, parts) = (SCRIPTS.concat() + &OF_ONE.concat(), STYLES.concat(), parts(view)?);
    let page = environment()?;
    let page = page.get_template("page.html")?;
    Ok(page.render(context! { script, style, parts, data => json(data)?, ..view_of(view) })?)
}

/// The page of many runs.
pub fn runs_page(name: &str, data: &impl Serialize) -> Result<String> {
    let (script, style) = (SCRIPTS.concat() + OF_MANY, STYLES.concat());
    let page = environment()?;
    let page = page.get_template("runs.html")?;
    Ok(page.render(context! { script, style, name, data => json(data)? })?)
}

/// The parts of the page that change while a run is in progress, by the id of their place.
pub fn parts(view: &View<'_>) -> Result<BTreeMap<&'static str, String>> {
    let environment = environment()?;
    let part = |id| {
        let template = environment.get_template(&format!("{id}.html"))?;
        Ok((id, template.render(view_of(view))?))
    };
    ["summary", "events", "memory"].into_iter().map(part).collect()
}

fn view_of(view: &View<'_>) -> Value {
    Value::from(Serde(view))
}

fn environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    for (name, template) in TEMPLATES {
        environment.add_template(name, template)?;
    }
    Ok(environment)
}

/// JSON that no text in it can end the script element of.
pub fn json(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(value)?.replace('<', "\\u003c"))
}
