//! Pages about problems: a problem's `type` links to them.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderName;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::response::Html;

use crate::api::problem::{Problem, ProblemCode};
use crate::model::{ApiEnum, suggest_word};
use crate::page;

/// A page with its content security policy.
type ProblemPage = ([(HeaderName, &'static str); 1], Html<String>);

/// Advice for browsers: how to send a request with a token.
const WITH_TOKEN: &str = "<p>Browsers do not send this header. <a href=\"/\">The page</a> and <a href=\"/docs\">the description of the API</a> ask for the token. Other paths need a program:</p>\n\
    <pre>curl -H \"Authorization: Bearer $(cat TOKEN-FILE)\" URL\nmeshkeep status --token-file TOKEN-FILE --server URL</pre>\n";

/// Serves the list of all problems.
pub(crate) async fn index() -> ProblemPage {
    let items =
        ProblemCode::ALL.iter().map(|code| format!("<li><a href=\"/problems/{0}\">{0}</a>: {1}</li>\n", code.api_name(), code.title()));
    with_policy(page::document("Problem types", "", &format!("<ul class=\"plain\">\n{}</ul>\n", items.collect::<String>())))
}

/// Serves the page of one problem.
pub(crate) async fn page_of_problem(path: Result<Path<String>, PathRejection>) -> Result<ProblemPage, Problem> {
    let Path(name) = path.map_err(|_| Problem::new(ProblemCode::NotFound, "there is no such problem: /problems lists all"))?;
    let Some(code) = ProblemCode::from_api_name(&name) else {
        let meant = suggest_word(&name, ProblemCode::ALL.map(ProblemCode::api_name));
        let meant = meant.map(|meant| format!(", perhaps /problems/{meant}")).unwrap_or_default();
        return Err(Problem::new(ProblemCode::NotFound, format!("there is no problem of that name{meant}: /problems lists all")));
    };
    Ok(with_policy(page::document(
        code.title(),
        "",
        &format!("{}<p><a href=\"/problems\">all problem types</a></p>\n", explain_problem(code)),
    )))
}

/// Returns the page for a browser without a token.
pub(crate) fn token_page() -> String {
    let code = ProblemCode::Unauthorized;
    page::document(code.title(), "", &format!("{}{WITH_TOKEN}", explain_problem(code)))
}

fn explain_problem(code: ProblemCode) -> String {
    format!(
        "<p><code>{}</code>, HTTP status {}.</p>\n<p>{}</p>\n",
        code.api_name(),
        code.status().as_u16(),
        code.advice().replace('&', "&amp;").replace('<', "&lt;")
    )
}

fn with_policy(text: String) -> ProblemPage {
    ([(CONTENT_SECURITY_POLICY, page::DOCUMENT_POLICY)], Html(text))
}
