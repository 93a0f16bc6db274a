//! `…/images/NAME/upload`: an image that is sent to the appliance, piece by piece.
//!
//! `POST ?offset=N` sends a piece that goes on at byte N; with the last one, `whole=SHA256`; `size=N` says how much it will be
//! in all. `GET` says how much has come. Both answer with a [`ReceivedBytes`]. A piece that does not fit is refused with 409:
//! ask where to go on.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::{ReceivedBytes, UploadPiece, UploadRefused};
use crate::api::slipway::Image;
use crate::apiserver::{ApiError, Upload, UploadRequest};
use crate::image::Library;
use crate::image::controller::Images;
use crate::image::identity::ready;
use crate::image::scheme::{UPLOAD_SCHEME, uploaded_file};

/// The upload, for the API server. `images` hear when one is whole.
pub(in crate::image) fn upload(library: Library, images: Images) -> Upload {
    Arc::new(move |request| {
        let (library, images) = (library.clone(), images.clone());
        Box::pin(async move { answer(&library, &images, request).await })
    })
}

/// What is said of a piece.
fn parse(query: &str) -> Result<UploadPiece, String> {
    let (mut offset, mut size, mut whole) = (None, None, None);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let number = || value.parse().map_err(|_| format!("{key}: {value:?} is not a number"));
        match key.as_ref() {
            "offset" => offset = Some(number()?),
            "size" => size = Some(number()?),
            "whole" => whole = Some(value.into_owned()),
            _ => {}
        }
    }
    Ok(UploadPiece { offset: offset.ok_or("offset: say where the piece begins")?, size, whole })
}

async fn answer(library: &Library, images: &Images, request: UploadRequest) -> Result<Response, ApiError> {
    let UploadRequest { object, query, piece, caller } = request;
    let image: Image = serde_json::from_value(object).map_err(|error| ApiError::internal(error.to_string()))?;
    let uid = image.metadata.uid.clone().unwrap_or_default();
    if uploaded_file(&image.spec.url).is_none() {
        let message = format!("only an image whose spec.url is {UPLOAD_SCHEME}:FILE is sent to the appliance");
        return Err(ApiError::new(StatusCode::CONFLICT, "Conflict", message));
    }
    let received = match piece {
        None if ready(&image).is_some() => Ok(ReceivedBytes { bytes: 0, whole: true }),
        None => library.received(&uid).await.map_err(UploadRefused::Failed),
        Some(_) if ready(&image).is_some() => {
            let message = "the image is in the library already: remove it first";
            return Err(ApiError::new(StatusCode::CONFLICT, "Conflict", message));
        }
        Some(body) => {
            let piece = parse(&query).map_err(ApiError::bad_request)?;
            library.receive(&uid, &caller, piece, body).await
        }
    };
    let received = received.map_err(|refused| told(&refused))?;
    if received.whole {
        images.look_at(&image);
    }
    Ok(axum::Json(received).into_response())
}

/// What a caller is told of it.
pub(in crate::image) fn told(refused: &UploadRefused) -> ApiError {
    let message = refused.to_string();
    match refused {
        UploadRefused::Offset(_) => ApiError::new(StatusCode::CONFLICT, "Conflict", message),
        UploadRefused::Invalid(_) => ApiError::bad_request(message),
        UploadRefused::Busy(_) => ApiError::unavailable(message),
        UploadRefused::TooMany(_) => ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message),
        UploadRefused::OverShare(_) => ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message),
        UploadRefused::Gone => ApiError::new(StatusCode::NOT_FOUND, "NotFound", message),
        UploadRefused::TooLarge(_) => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message),
        UploadRefused::CutOff => ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message),
        UploadRefused::Failed(error) => {
            tracing::error!(%error, "cannot keep an upload");
            ApiError::internal(format!("the upload cannot be kept: {message}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_says_where_it_begins() {
        let piece =
            |offset, size, whole: Option<&str>| Ok(UploadPiece { offset, size, whole: whole.map(str::to_owned) });
        for (query, wanted) in [
            ("offset=0", piece(0, None, None)),
            ("offset=7&size=9&whole=ab", piece(7, Some(9), Some("ab"))),
            ("offset=7&size=x", Err("size")),
            ("", Err("offset")),
            ("offset=-1", Err("offset")),
            ("offset=99999999999999999999", Err("offset")),
        ] {
            match (parse(query), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{reason}"),
                (found, _) => panic!("{query}: {found:?}"),
            }
        }
    }
}
