//! The OpenAPI document, generated from the handlers and the types that they read and write.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::OpenApi;

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
        components(schemas(super::problem::Document)),
    )]
    struct Base;

    Base::openapi()
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "health", security(()),
    responses((status = 200, description = "OpenAPI 3.1.", body = serde_json::Value, content_type = "application/json"))
)]
pub async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], text())
}
