//! The OpenAPI document, generated from the handlers and the types that they read and write.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::Modify;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Header, ObjectBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, Type};

use super::problem::{self, Kind};

/// What is served and printed: the document as JSON, keys in a stable order, a line break at its end.
pub fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let mut text = super::document().to_pretty_json().unwrap_or_default();
        text.push('\n');
        text
    });
    &TEXT
}

/// The document without any path.
pub fn base() -> OpenApi {
    use utoipa::OpenApi as _;

    #[derive(utoipa::OpenApi)]
    #[openapi(
        info(
            title = "paylatch",
            description = "Payments that end: charge, business and refund under one number each.",
            license(name = "MIT", identifier = "MIT"),
        ),
        tags(
            (name = "payments", description = "Begin a payment, look at it, wish it away."),
            (name = "refunds", description = "Give money back that a person asks for."),
            (name = "health", description = "For those who run the server. They ask for no token."),
        ),
        components(schemas(problem::Document)),
        security(("bearer" = [])),
        modifiers(&Bearer),
    )]
    struct Base;

    Base::openapi()
}

/// What any request for a merchant can meet.
const ANY: &[Kind] =
    &[Kind::Unauthorized, Kind::Forbidden, Kind::RateLimited, Kind::Internal, Kind::Overloaded, Kind::Unavailable];
/// What a request with a body can meet besides.
const BODY: &[Kind] = &[
    Kind::BadRequest,
    Kind::KeyMissing,
    Kind::Timeout,
    Kind::Busy,
    Kind::BodyTooLarge,
    Kind::UnsupportedMediaType,
    Kind::Invalid,
    Kind::KeyReused,
];

/// What each operation can meet besides.
fn own_problems(operation_id: &str) -> &'static [&'static [Kind]] {
    match operation_id {
        "createPayment" => &[ANY, BODY, &[Kind::UnknownScene, Kind::ChannelUnavailable, Kind::SceneClosed]],
        "createRefund" => {
            &[ANY, BODY, &[Kind::NotFound, Kind::NotRefundable, Kind::OverLimit, Kind::PreconditionFailed]]
        }
        "cancelPayment" => &[ANY, &[Kind::NotFound, Kind::Busy]],
        "findPayments" => &[ANY, &[Kind::BadRequest, Kind::Invalid]],
        "getOrder" => &[ANY, &[Kind::BadRequest, Kind::Invalid, Kind::NotFound]],
        "getPayment" | "getRefund" | "getRefunds" => &[ANY, &[Kind::NotFound]],
        _ => &[],
    }
}

/// Adds to each operation the problems that it can answer, by status.
pub fn completed(mut document: OpenApi) -> OpenApi {
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post].into_iter().flatten();
        for operation in operations {
            let kinds = own_problems(operation.operation_id.as_deref().unwrap_or_default());
            let mut by_status: BTreeMap<u16, Vec<Kind>> = BTreeMap::new();
            for kind in kinds.iter().copied().flatten() {
                by_status.entry(kind.status().as_u16()).or_default().push(*kind);
            }
            for (status, kinds) in by_status {
                operation.responses.responses.insert(status.to_string(), RefOr::T(problem_response(&kinds)));
            }
        }
    }
    document
}

fn problem_response(kinds: &[Kind]) -> Response {
    let words: Vec<_> = kinds.iter().map(|kind| format!("`{}`: {}.", kind.slug(), kind.title())).collect();
    let schema = Ref::from_schema_name("Problem");
    let mut response = ResponseBuilder::new()
        .description(words.join(" "))
        .content(problem::MEDIA_TYPE, ContentBuilder::new().schema(Some(schema)).build());
    if kinds.iter().any(|kind| kind.retry_after_s().is_some()) {
        let mut header = Header::new(ObjectBuilder::new().schema_type(Type::Integer).build());
        header.description = Some("Try again after so many seconds.".to_owned());
        response = response.header("Retry-After", header);
    }
    response.build()
}

/// The token of a merchant.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "`paylatchd token create`. Not asked for by a server that has no tokens and listens on loopback.",
            ))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(scheme));
    }
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "health", security(()),
    responses((status = 200, description = "OpenAPI 3.1.", body = serde_json::Value, content_type = "application/json"))
)]
pub async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], text())
}
