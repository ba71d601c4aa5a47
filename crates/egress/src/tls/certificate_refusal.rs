//! Explains problems with a server's certificate.

use rustls::CertificateError;

use crate::refusal::{ReasonCode, Refusal};
use crate::target::Target;

/// Explains why a certificate is not trusted.
pub(crate) fn refuse(target: &Target, error: &CertificateError) -> Refusal {
    let (why, remedy) = match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => ("has expired", Remedy::Owner),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            ("is not valid yet, or the clock of this server is wrong", Remedy::Owner)
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            ("is for another name", Remedy::Owner)
        }
        CertificateError::Revoked => ("was revoked", Remedy::Owner),
        CertificateError::UnknownIssuer => ("was signed by an unknown authority", Remedy::Operator),
        // The TLS library has no error variant for this case.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            ("is the certificate of an authority, not of a server", Remedy::Operator)
        }
        _ => ("is not valid", Remedy::Owner),
    };
    let remedy = match remedy {
        Remedy::Owner => format!("the owner of {target} must install a valid certificate"),
        Remedy::Operator => {
            "ask the operator of this server to add the certificate of the authority to `extra_ca` in \
                             the section [egress]"
                .to_owned()
        }
    };
    Refusal {
        code: ReasonCode::BadCertificate,
        rule: String::new(),
        reason: format!("{target} is not trusted: its certificate {why}"),
        remedy,
    }
}

/// Who can fix the problem.
enum Remedy {
    Owner,
    Operator,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_refusal_names_reason_and_remedy() {
        let target = Target::from_authority("a.example:443", None).unwrap();
        for (error, why, remedy) in [
            (CertificateError::Expired, "has expired", "a.example:443"),
            (CertificateError::NotValidForName, "another name", "a.example:443"),
            (CertificateError::UnknownIssuer, "unknown authority", "extra_ca"),
            (CertificateError::BadSignature, "not valid", "a.example:443"),
        ] {
            let refusal = refuse(&target, &error);
            assert!(refusal.reason.contains(why) && refusal.remedy.contains(remedy), "{refusal:?}");
        }
    }
}
