//! Who vouches for a component: ed25519 signatures over its digest, in a file beside it.
//!
//! A signature says that whoever holds the key had these bytes in hand. It grants nothing: a signed component runs in
//! the same sandbox as any other.

use crate::{RuntimeError, cache};
use ed25519_dalek::{Signature, Signer, SigningKey, Verifier, VerifyingKey};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What is signed, before the digest: a signature of ours is good for nothing else.
const CONTEXT: &str = "slime-host plugin v1 sha256:";
const PREFIX: &str = "ed25519:";

/// A key that signatures are checked with, `ed25519:` and 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

/// A key that signs. Its text is a secret.
pub struct SecretKey(SigningKey);

impl FromStr for PublicKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no key: write ed25519: and 64 hexadecimal digits");
        let bytes = text.trim().strip_prefix(PREFIX).and_then(unhex::<32>);
        let key = VerifyingKey::from_bytes(&bytes.ok_or_else(wrong)?);
        key.map(Self).map_err(|_| wrong())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", cache::hex(self.0.as_bytes()))
    }
}

impl SecretKey {
    /// A new key, from the system's randomness.
    ///
    /// # Errors
    /// The system has none.
    pub fn generate() -> std::io::Result<Self> {
        let mut seed = [0; 32];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut seed)?;
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// Read a key that [`Self::to_text`] wrote.
    ///
    /// # Errors
    /// The text is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes = text.trim().strip_prefix("ed25519-secret:").and_then(unhex);
        let bytes =
            bytes.ok_or("this is no secret key; make one with: slime-host plugin keygen FILE")?;
        Ok(Self(SigningKey::from_bytes(&bytes)))
    }

    /// The key as text. Keep it to yourself.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("ed25519-secret:{}\n", cache::hex(&self.0.to_bytes()))
    }

    /// What its signatures are checked with.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// The text of the file beside a component.
    #[must_use]
    pub fn sign(&self, component: &[u8]) -> String {
        let signature = self.0.sign(message(component).as_bytes());
        format!("{} {}\n", self.public(), cache::hex(&signature.to_bytes()))
    }
}

fn message(component: &[u8]) -> String {
    format!("{CONTEXT}{}", cache::digest(component))
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Where the signatures of a component lie.
#[must_use]
pub fn signature_file(component: &Path) -> PathBuf {
    let mut name = component.as_os_str().to_owned();
    name.push(".sig");
    name.into()
}

/// Whether one of `trusted` signed the component at `path`. The file beside it holds a signature a line.
///
/// # Errors
/// No signature, or none that holds, with what was found.
pub fn check(path: &Path, component: &[u8], trusted: &[PublicKey]) -> Result<(), RuntimeError> {
    let file = signature_file(path);
    let refuse = |reason: String| RuntimeError::Untrusted {
        path: path.into(),
        reason,
    };
    let text = std::fs::read_to_string(&file).map_err(|error| {
        refuse(format!(
            "there is no signature at {} ({error}), and only signed plugins may run; \
             sign it: slime-host plugin sign FILE.wasm --key KEY",
            file.display()
        ))
    })?;
    let mut strangers = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (key, signature) = line.split_once(' ').unwrap_or((line, ""));
        let Ok(key) = key.parse::<PublicKey>() else {
            strangers.push(format!("`{key}`, which is no key"));
            continue;
        };
        if !trusted.contains(&key) {
            strangers.push(format!("{key}, which is not trusted"));
            continue;
        }
        let bytes = unhex::<64>(signature.trim());
        let holds = bytes.is_some_and(|bytes| {
            let signature = Signature::from_bytes(&bytes);
            key.0
                .verify(message(component).as_bytes(), &signature)
                .is_ok()
        });
        if holds {
            return Ok(());
        }
        strangers.push(format!(
            "{key}, but of other bytes: the component was changed"
        ));
    }
    Err(refuse(format!(
        "it is signed by {}",
        match strangers.as_slice() {
            [] => "nobody".into(),
            names => names.join(" and "),
        }
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SecretKey {
        SecretKey::parse(&format!(
            "ed25519-secret:{}",
            format!("{byte:02x}").repeat(32)
        ))
        .unwrap()
    }

    fn signed(text: &str, component: &[u8], trusted: &[PublicKey]) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.wasm");
        std::fs::write(signature_file(&path), text).unwrap();
        check(&path, component, trusted).map_err(|error| error.to_string())
    }

    #[test]
    fn only_a_trusted_signature_of_the_same_bytes_holds() {
        let (mine, other) = (key(1), key(2));
        let trusted = [mine.public()];
        assert_eq!(signed(&mine.sign(b"abc"), b"abc", &trusted), Ok(()));
        let both = format!("{}{}", other.sign(b"abc"), mine.sign(b"abc"));
        assert_eq!(signed(&both, b"abc", &trusted), Ok(()));
        for (text, component, reason) in [
            (other.sign(b"abc"), b"abc", "is not trusted"),
            (mine.sign(b"abd"), b"abc", "the component was changed"),
            (String::new(), b"abc", "signed by nobody"),
            ("junk\n".into(), b"abc", "is no key"),
            (
                format!("{} 00\n", mine.public()),
                b"abc",
                "the component was changed",
            ),
        ] {
            let error = signed(&text, component, &trusted).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let missing = check("no/such.wasm".as_ref(), b"", &trusted)
            .unwrap_err()
            .to_string();
        assert!(missing.contains("plugin sign"), "{missing}");
    }

    #[test]
    fn keys_come_back_from_their_text_and_match_rfc_8032() {
        let made = SecretKey::generate().unwrap();
        assert_eq!(
            SecretKey::parse(&made.to_text()).unwrap().public(),
            made.public()
        );
        assert_eq!(
            made.public().to_string().parse::<PublicKey>().unwrap(),
            made.public()
        );
        // RFC 8032, section 7.1, test 1.
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let known = SecretKey::parse(&format!("ed25519-secret:{seed}")).unwrap();
        assert_eq!(
            known.public().to_string(),
            "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        );
        assert!("ed25519:00".parse::<PublicKey>().is_err());
    }
}
