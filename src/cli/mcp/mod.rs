//! `meshkeep mcp`: a Model Context Protocol server on standard input and output, for assistants.
//!
//! The server is a client of one running sidecar. Its tools (`tools`) only read, and their answers
//! (`answer`) are the JSON of the HTTP API. Errors name tools instead of commands (`advice`).
//! Standard output carries only the protocol; the log goes to standard error.

mod advice;
mod answer;
mod tools;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, ServerInitializeError};
use rmcp::transport::stdio;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use tokio::sync::Semaphore;

use self::answer::ToolAnswer;
use super::failure::{CommandResult, ExitStatus, Failure};
use super::queries::api_client::{ApiClient, ServerOptions};
use crate::config::{LogFormat, LogLevel};
use crate::model::readable_error;
use crate::telemetry;

/// Maximum number of tool calls that wait for the sidecar at the same time. Each may hold an answer
/// of 64 MiB, and assistants rarely send more than two calls at once.
const CALLS_MAX: usize = 4;

/// Text for the assistant about the server as a whole.
const INSTRUCTIONS: &str = "meshkeep mirrors what the remote clusters of a Cilium ClusterMesh publish: nodes, services, identities and \
    addresses. These tools only read its mirror. `meta` in an answer says how old the data is (`ageSeconds`), and whether the source has \
    confirmed it since the start (`origin` is `live`) or not (`restored`). Start with `problems` if something does not work, and with \
    `explain` if the question is about one address.";

/// Server for one assistant.
struct AssistantServer {
    options: ServerOptions,
    calls: Semaphore,
}

impl AssistantServer {
    /// Calls a tool. The client is created for each call, because a token or a certificate may
    /// change while the assistant runs.
    async fn call(&self, tool: tools::ToolKind, arguments: serde_json::Map<String, serde_json::Value>) -> Result<ToolAnswer, Failure> {
        // the semaphore is never closed
        let _permit = self.calls.acquire().await.ok();
        let client = ApiClient::new(&self.options)?.for_assistant();
        answer::limit(tool.call(&client, arguments).await?)
    }
}

impl ServerHandler for AssistantServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("meshkeep", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::ToolKind::from_name(name).map(tools::ToolKind::description)
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: RequestContext<RoleServer>) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::ToolKind::ALL.map(tools::ToolKind::description).to_vec()))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: RequestContext<RoleServer>) -> Result<CallToolResponse, ErrorData> {
        let unknown = || ErrorData::invalid_params(format!("there is no tool {:?}: tools/list lists all", request.name), None);
        let tool = tools::ToolKind::from_name(&request.name).ok_or_else(unknown)?;
        let answer = tokio::select! {
            answer = self.call(tool, request.arguments.unwrap_or_default()) => answer,
            // nobody reads the answer of a cancelled call
            () = context.ct.cancelled() => Err(Failure::new("the call was cancelled")),
        };
        // a failure is an answer too, because assistants see only the texts of answers
        let result = match answer {
            Ok(ToolAnswer { json, note }) => CallToolResult::success(std::iter::once(json).chain(note).map(ContentBlock::text).collect()),
            Err(failure) => CallToolResult::error(vec![ContentBlock::text(advice::for_assistant(&readable_error(failure)))]),
        };
        Ok(result.into())
    }
}

/// Serves until standard input ends.
pub(super) async fn run(options: &ServerOptions) -> CommandResult {
    let _log = telemetry::init(LogFormat::Text, LogLevel::Info, None)?;
    // options that no call could use end the command
    ApiClient::new(options)?;
    let server = AssistantServer { options: options.clone(), calls: Semaphore::new(CALLS_MAX) };
    match server.serve(stdio()).await {
        Ok(service) => drop(service.waiting().await?),
        // the assistant has ended before it sent anything
        Err(ServerInitializeError::ConnectionClosed(_)) => {}
        Err(error) => return Err(Failure::new(format!("the client does not speak the Model Context Protocol: {error}"))),
    }
    Ok(ExitStatus::Success)
}
