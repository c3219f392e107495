//! The HTTP API: payments and refunds for applications that speak HTTP instead of SQL.
//!
//! A request becomes one call of a database function, and its outcome one answer; nothing is decided here. The order of
//! what stands before a handler: it is seen ([`observe`]), a panic is caught, it takes a place ([`limits`]), it says
//! whose it is ([`auth`]), its rate is counted, and its time begins to run.
//!
//! Invariants: every route under `/v1` passes the caller's merchant to the database, so another merchant's payment is
//! as one that does not exist; whatever a client does, what it began either committed or did not, and asking again with
//! the same key tells which.
//!
//! Beside it, for wallets and not for merchants: [`webhooks`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::auth::Auth;
use self::limits::Room;
use self::probes::Readiness;
use self::problem::{Kind, Problem};
use self::wait::Hands;
use crate::config::Config;
use crate::db::Db;
use crate::dispatch::Adapters;
use crate::error::Error;
use crate::metrics::HttpMetrics;

pub mod auth;
pub mod input;
pub mod limits;
pub mod model;
mod observe;
pub mod openapi;
mod payments;
mod probes;
pub mod problem;
mod refunds;
mod socket;
pub mod token;
mod wait;
pub mod webhooks;

/// What the handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Api(Arc<Shared>);

struct Shared {
    db: Db,
    adapters: Arc<Adapters>,
    auth: Auth,
    room: Room,
    readiness: Readiness,
    stopping: CancellationToken,
    hands: Hands,
    body: BodyLimits,
    request_timeout: Duration,
    max_wait: Duration,
    loopback: bool,
}

/// What a request's body may be.
struct BodyLimits {
    bytes: usize,
    timeout: Duration,
}

impl Api {
    /// The API for a server at `address`. `worker` is where payments are carried out from, for those who wait.
    ///
    /// # Errors
    /// `database.url` is not a URL.
    pub fn open(
        config: &Config,
        address: SocketAddr,
        worker: Db,
        adapters: Arc<Adapters>,
        stopping: CancellationToken,
    ) -> Result<Self, Error> {
        let db = Db::serving(&config.database, &config.api, &config.driver_name())?;
        let loopback = address.ip().is_loopback();
        let lease = Duration::from_millis(config.driver.lease_ms);
        Ok(Self(Arc::new(Shared {
            auth: Auth::new(db.clone(), &config.api, loopback),
            room: Room::new(&config.api),
            readiness: Readiness::default(),
            hands: Hands::new(worker, Arc::clone(&adapters), lease, stopping.clone()),
            body: BodyLimits {
                bytes: config.api.max_body_bytes,
                timeout: Duration::from_millis(config.api.body_timeout_ms),
            },
            request_timeout: Duration::from_millis(config.api.request_timeout_ms),
            max_wait: Duration::from_millis(config.api.max_wait_ms),
            loopback,
            db,
            adapters,
            stopping,
        })))
    }

    fn db(&self) -> &Db {
        &self.0.db
    }

    fn adapters(&self) -> &Arc<Adapters> {
        &self.0.adapters
    }

    fn metrics(&self) -> &HttpMetrics {
        &self.0.adapters.metrics().http
    }

    fn readiness(&self) -> &Readiness {
        &self.0.readiness
    }

    fn is_loopback(&self) -> bool {
        self.0.loopback
    }

    fn stopping(&self) -> &CancellationToken {
        &self.0.stopping
    }
}

/// Binds to `address`.
///
/// # Errors
/// [`Error::Io`], which says what to set instead.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(Error::io(format!("listen at {address} (api.listen)")))
}

/// Serves until some time after `shutdown`; returns once the last request has been answered or given up.
///
/// # Errors
/// [`Error::Refused`] at an address that others can reach, while no token was ever made; whatever the database answers
/// when it is asked that.
pub async fn serve(
    listener: TcpListener,
    config: &Config,
    worker: Db,
    adapters: Arc<Adapters>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let address = listener.local_addr().map_err(Error::io("find the address of api.listen"))?;
    let api = Api::open(config, address, worker, adapters, shutdown.clone())?;
    if !address.ip().is_loopback() && api.db().api_is_open().await? {
        return Err(Error::Refused(format!(
            "api.listen is {address}, which others can reach, and no token was ever made: make one first \
             (paylatchd token create --merchant M --name N), or listen at 127.0.0.1:{}",
            address.port()
        )));
    }
    tracing::info!(%address, "serving the API");
    let limits = socket::Limits::new(&config.api, config.driver.shutdown_grace_ms);
    let deadline = socket::serve(listener, router(&api), limits, shutdown).await;
    api.0.hands.rest(deadline).await;
    api.db().close().await;
    Ok(())
}

/// Everything that is served, and the document that describes it.
fn routes() -> (OpenApiRouter<Api>, OpenApiRouter<Api>) {
    let open = OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(probes::healthz))
        .routes(routes!(probes::readyz))
        .routes(routes!(probes::metrics))
        .routes(routes!(openapi::openapi));
    let guarded = OpenApiRouter::new()
        .routes(routes!(payments::create, payments::find))
        .routes(routes!(payments::get))
        .routes(routes!(payments::cancel))
        .routes(routes!(payments::order))
        .routes(routes!(refunds::create, refunds::list))
        .routes(routes!(refunds::get));
    (open, guarded)
}

/// The OpenAPI document.
pub fn document() -> OpenApi {
    let (open, guarded) = routes();
    openapi::completed(open.merge(guarded).into_openapi())
}

fn router(api: &Api) -> Router {
    let (open, guarded) = routes();
    let guarded: Router<Api> = guarded.into();
    let open: Router<Api> = open.into();
    open.merge(guarded.route_layer(middleware::from_fn_with_state(api.clone(), guard)))
        .merge(webhooks::router(api.db().clone(), Arc::clone(api.adapters())))
        .fallback(async || Problem::new(Kind::NotFound))
        .method_not_allowed_fallback(async || Problem::new(Kind::MethodNotAllowed))
        .layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
            tracing::error!("a handler panicked");
            Problem::new(Kind::Internal).into_response()
        }))
        .layer(middleware::from_fn(input::close_after_unread))
        .layer(middleware::from_fn_with_state(api.clone(), observe::observe))
        .with_state(api.clone())
}

/// Lets a request through if there is room for it, it says whose it is, and its rate allows it; and ends it in time.
async fn guard(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let place = match api.0.room.enter() {
        Ok(place) => place,
        Err(problem) => return problem.into_response(),
    };
    let caller = match api.0.auth.identify(request.headers()).await {
        Ok(caller) => caller,
        Err(problem) => return problem.into_response(),
    };
    let (left, mut response) = match caller.rate.take() {
        Err(left) => (left, left.refused().into_response()),
        Ok(left) => {
            let within = api.0.request_timeout + longest_wait(&api, request.headers());
            request.extensions_mut().insert(Arc::clone(&caller.identity));
            request.extensions_mut().insert(place.clone());
            let answered = tokio::time::timeout(within, next.run(request)).await;
            (left, answered.unwrap_or_else(|_| late().into_response()))
        }
    };
    left.write(response.headers_mut());
    response.extensions_mut().insert(caller.identity);
    response
}

fn late() -> Problem {
    Problem::says(
        Kind::Unavailable,
        "no answer in time; what was begun may have been done: ask again with the same key",
    )
}

fn longest_wait(api: &Api, headers: &HeaderMap) -> Duration {
    if headers.contains_key("prefer") { api.0.max_wait } else { Duration::ZERO }
}
