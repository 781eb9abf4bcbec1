//! A page for each kind of trouble: what a problem's `type` leads to.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::Html;

use crate::api::problem::{Code, Problem};
use crate::api::words::nearest;

/// All of them.
pub(crate) async fn index() -> Html<String> {
    let items = Code::ALL.iter().map(|code| format!("<li><a href=\"/problems/{0}\">{0}</a>: {1}</li>\n", code.name(), code.title()));
    Html(page("Problems", &format!("<ul>\n{}</ul>\n", items.collect::<String>())))
}

/// One of them.
pub(crate) async fn one(path: Result<Path<String>, PathRejection>) -> Result<Html<String>, Problem> {
    let Path(name) = path.map_err(|_| Problem::new(Code::NotFound, "there is no such problem: /problems lists what there is"))?;
    let Some(code) = Code::ALL.iter().find(|code| code.name() == name) else {
        let meant = nearest(&name, Code::ALL.iter().map(|code| code.name()));
        let meant = meant.map(|meant| format!(", you may mean /problems/{meant}")).unwrap_or_default();
        return Err(Problem::new(Code::NotFound, format!("there is no problem of that name{meant}: /problems lists what there is")));
    };
    let body = format!(
        "<p><code>{}</code>, HTTP status {}.</p>\n<p>{}</p>\n<p><a href=\"/problems\">all problems</a></p>\n",
        code.name(),
        code.status().as_u16(),
        code.advice().replace('&', "&amp;").replace('<', "&lt;")
    );
    Ok(Html(page(code.title(), &body)))
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title} - meshkeep</title>\n<h1>{title}</h1>\n{body}</html>\n"
    )
}
