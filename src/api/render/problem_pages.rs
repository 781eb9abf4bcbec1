//! Pages about problems: a problem's `type` links to them.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::Html;

use crate::api::problem::{Problem, ProblemCode};
use crate::model::{ApiEnum, suggest_word};

/// Advice for browsers: how to send a request with a token.
const WITH_TOKEN: &str = "<p>Browsers do not send this header. Use a program that does:</p>\n\
    <pre>curl -H \"Authorization: Bearer $(cat TOKEN-FILE)\" URL\nmeshkeep status --token-file TOKEN-FILE --server URL</pre>\n\
    <p><code>meshkeep openapi</code> prints the description of the API without a server.</p>\n";

/// Serves the list of all problems.
pub(crate) async fn index() -> Html<String> {
    let items =
        ProblemCode::ALL.iter().map(|code| format!("<li><a href=\"/problems/{0}\">{0}</a>: {1}</li>\n", code.api_name(), code.title()));
    Html(html_page("Problems", &format!("<ul>\n{}</ul>\n", items.collect::<String>())))
}

/// Serves the page of one problem.
pub(crate) async fn page_of_problem(path: Result<Path<String>, PathRejection>) -> Result<Html<String>, Problem> {
    let Path(name) = path.map_err(|_| Problem::new(ProblemCode::NotFound, "there is no such problem: /problems lists all"))?;
    let Some(code) = ProblemCode::from_api_name(&name) else {
        let meant = suggest_word(&name, ProblemCode::ALL.map(ProblemCode::api_name));
        let meant = meant.map(|meant| format!(", perhaps /problems/{meant}")).unwrap_or_default();
        return Err(Problem::new(ProblemCode::NotFound, format!("there is no problem of that name{meant}: /problems lists all")));
    };
    Ok(Html(html_page(code.title(), &format!("{}<p><a href=\"/problems\">all problems</a></p>\n", explain_problem(code)))))
}

/// Returns the page for a browser without a token.
pub(crate) fn token_page() -> String {
    let code = ProblemCode::Unauthorized;
    html_page(code.title(), &format!("{}{WITH_TOKEN}", explain_problem(code)))
}

fn explain_problem(code: ProblemCode) -> String {
    format!(
        "<p><code>{}</code>, HTTP status {}.</p>\n<p>{}</p>\n",
        code.api_name(),
        code.status().as_u16(),
        code.advice().replace('&', "&amp;").replace('<', "&lt;")
    )
}

fn html_page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title} - meshkeep</title>\n<h1>{title}</h1>\n{body}</html>\n"
    )
}
