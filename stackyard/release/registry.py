"""Read and write a registry over HTTP: manifests, blobs, tags and referrers.

Owns the distribution protocol: uploads, mounts, lists in pages, and checking that answers have the
requested digest. It must not know what a release is. Source: the OCI distribution specification
1.1.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import IO
from urllib.parse import urlencode

from stackyard.release.connection import Answer, Connection
from stackyard.scan.oci import (
    INDEX,
    MANIFEST,
    Descriptor,
    described,
    digest_of,
    is_digest,
    read_index,
    referrers_index,
    referrers_tag,
)
from stackyard.system.chunks import Counted
from stackyard.system.errors import RegistryError, shown
from stackyard.system.transport import pieces

# Images that others published may have Docker's own media types.
MANIFEST_KINDS = (
    MANIFEST,
    INDEX,
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
LONGEST_MANIFEST = 8 * 2**20
# Of tags or referrers, over all pages.
LONGEST_LIST = 64 * 2**20
MOST_PAGES = 1000


class Registry(Connection):
    """Reach one repository of a registry; threads may share an instance."""

    def manifest(self, reference: str) -> bytes | None:
        """Return a manifest by tag or digest; None where there is none of that name.

        Raises:
            RegistryError: no answer, a refusal, or bytes of another digest.
        """
        headers = {"Accept": ", ".join(MANIFEST_KINDS)}
        answer = self._ask(
            "GET", f"/manifests/{reference}", {200, 404}, headers=headers, limit=LONGEST_MANIFEST
        )
        if answer.status == 404:
            return None
        data = answer.content
        self._check(data, reference if is_digest(reference) else "", f"manifest {reference}")
        return data

    def put_manifest(self, reference: str, data: bytes, kind: str = MANIFEST) -> None:
        """Put a manifest under a tag or its digest; every blob it names must exist already."""
        headers = {"Content-Type": kind}
        path = f"/manifests/{reference}"
        self._ask("PUT", path, {200, 201, 202}, headers=headers, data=data)

    def has(self, digest: str) -> bool:
        """Return whether the repository holds a blob that can be read.

        distribution 2.8 leaves its link to a blob empty when its disk is full, and answers 500 to
        every question about that blob from then on. Uploading the blob again writes the link.
        """
        try:
            return self._ask("HEAD", f"/blobs/{digest}", {200, 404}).status == 200
        except RegistryError as error:
            if error.status != 500:
                raise
            return False

    def blob_size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes; None where there is no such blob."""
        answer = self._ask("HEAD", f"/blobs/{digest}", {200, 404})
        if answer.status == 404:
            return None
        size = answer.headers.get("Content-Length", "")
        return int(size) if re.fullmatch("[0-9]{1,18}", size) else -1

    def blob(self, descriptor: Descriptor, limit: int = 64 * 2**20) -> bytes:
        """Return a small blob's bytes, after checking its digest.

        Raises:
            RegistryError: it is missing, longer than `limit`, or has another digest.
        """
        if descriptor.size > limit:
            raise RegistryError(f"{self.repository}: {descriptor.digest} is too long to be read")
        path = f"/blobs/{descriptor.digest}"
        data = self._ask("GET", path, {200}, limit=limit).content
        self._check(data, descriptor.digest, "blob")
        return data

    def stream(self, digest: str, start: int = 0) -> Iterator[bytes]:
        """Yield a blob's bytes from `start` on; the caller checks the digest of the whole.

        Raises:
            RegistryError: it is missing, or the connection broke.
        """
        headers = {"Range": f"bytes={start}-"} if start else {}
        url = f"{self._base}/blobs/{digest}"
        given = {"headers": headers}
        answer = self._repeated(lambda: self._open("GET", url, {200, 206}, given))
        with contextlib.closing(answer), self._told(f"reading {digest}"):
            skip = start if answer.status_code == 200 else 0
            for chunk in pieces(answer, self._patience.silent_seconds):
                yield chunk[skip:]
                skip = max(0, skip - len(chunk))

    def upload(
        self,
        descriptor: Descriptor,
        opened: Callable[[], IO[bytes]],
        sent: Callable[[int], None],
        source: str = "",
    ) -> bool:
        """Upload a blob; return False when the registry had it already.

        A blob is uploaded whole or not at all. After a failure the upload is cancelled; partial
        uploads that remain, as after a killed publisher, are purged by the registry after a week.
        After `give_up` it is cancelled at its next chunk.

        Args:
            opened: opens the content; called once for each try.
            sent: called with the number of bytes sent (negative when a try starts again).
            source: name of another repository of this registry that may hold it; empty for none.
        """
        if self.has(descriptor.digest):
            return False
        place = self._mount(descriptor, source) if source else ""
        if place is None:
            return False
        for attempt in range(self._patience.tries):
            body = Counted(opened(), descriptor.size, self._unless_given_up(sent))
            try:
                self._upload(descriptor, body, "" if attempt else place)
                return True
            except RegistryError as error:
                sent(-body.told)
                last = attempt == self._patience.tries - 1
                if last or not error.passing or not self._pause(attempt):
                    raise
            finally:
                body.close()
        raise AssertionError

    def _unless_given_up(self, sent: Callable[[int], None]) -> Callable[[int], None]:
        """Return what counts the chunks of an upload, and breaks it off once it is given up."""

        def told(count: int) -> None:
            if self._given_up:
                raise RegistryError(f"{self.repository}: the upload was given up")
            sent(count)

        return told

    def _mount(self, descriptor: Descriptor, source: str) -> str | None:
        """Ask the registry to take a blob from another of its repositories.

        Return None where it did, else the address of the upload that it began instead; empty where
        it refused, since a registry without mounts need not know how to say so.
        """
        query = urlencode({"mount": descriptor.digest, "from": source})
        try:
            answer = self._ask("POST", f"/blobs/uploads/?{query}", {201, 202}, tries=1)
        except RegistryError:
            return ""
        return None if answer.status == 201 else self._location(answer)

    def _location(self, begun: Answer) -> str:
        return self._joined(begun.url, begun.headers.get("Location", ""))

    def _upload(self, descriptor: Descriptor, body: Counted, place: str) -> None:
        # One try only, since `upload` repeats the whole upload.
        if not place:
            place = self._location(self._ask("POST", "/blobs/uploads/", {202}, tries=1))
        joint = "&" if "?" in place else "?"
        try:
            self._ask(
                "PUT", f"{place}{joint}digest={descriptor.digest}", {201, 204}, data=body, tries=1,
                headers={"Content-Type": "application/octet-stream"},
            )  # fmt: skip
        except RegistryError:
            # A registry keeps a partial upload for days unless it is cancelled. Best effort:
            # distribution 2.8 answers 404 and keeps it when its disk is full to the last byte.
            with contextlib.suppress(RegistryError):
                self._ask("DELETE", place, {204, 404}, tries=1)
            raise

    def tags(self) -> list[str]:
        """Return every tag of the repository; none where the repository does not exist yet."""
        found: list[str] = []
        for page in self._pages("/tags/list?n=1000", {200, 404}):
            if page.status == 200:
                found += [str(tag) for tag in self._json(page).get("tags") or []]
        return found

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return the artifacts that refer to an image, by the API or else the fallback tag."""
        found: list[Descriptor] = []
        for page in self._pages(f"/referrers/{digest}", {200, 400, 404, 405, 501}):
            if page.status != 200 or "json" not in page.headers.get("Content-Type", ""):
                data = self.manifest(referrers_tag(digest))
                return () if data is None else self._listed(data)
            found += self._listed(page.content)
        return tuple(found)

    def _pages(self, path: str, good: set[int]) -> Iterator[Answer]:
        """Yield the pages of a list; each page but the last one names the next.

        Raises:
            RegistryError: a page is missing or on another host, or the list does not end.
        """
        url, size = f"{self._base}{path}", 0
        for number in range(MOST_PAGES):
            page = self._ask("GET", url, {200} if number else good)
            size += len(page.content)
            yield page
            if page.status != 200 or not page.following:
                return
            url = self._joined(page.url, page.following)
            if not self._owns(url):
                raise RegistryError(
                    f"{self.repository}: the next page of a list is on another host",
                    why=shown(url), hint="the registry's owner should look; nothing was used",
                )  # fmt: skip
            if size > LONGEST_LIST:
                break
        raise RegistryError(
            f"{self.repository}: a list does not end",
            why=f"{number + 1} pages with {size} bytes were read",
            hint="the registry's owner should look; nothing was used",
        )

    def _listed(self, data: bytes) -> tuple[Descriptor, ...]:
        try:
            return read_index(data)
        except (ValueError, RecursionError) as error:
            raise RegistryError(
                f"{self.repository}: its list of artifacts cannot be read", why=str(error)
            ) from error

    def attach(self, descriptor: Descriptor, manifest: bytes, subject: str) -> None:
        """Put an artifact's manifest, and list it under the fallback tag where there is no API."""
        self.put_manifest(descriptor.digest, manifest)
        before = self.referrers(subject)
        if descriptor.digest not in {entry.digest for entry in before}:
            data = referrers_index([*before, descriptor])
            self.put_manifest(referrers_tag(subject), data, INDEX)

    def _check(self, data: bytes, digest: str, what: str) -> None:
        if digest and digest_of(data) != digest:
            raise RegistryError(
                f"{self.repository}: the {what} is not what its digest says",
                why=f"{digest} was asked for, {digest_of(data)} came",
                hint="the registry's owner should look; nothing was used",
            )


def manifest_descriptor(data: bytes, artifact_type: str = "") -> Descriptor:
    """Return the descriptor of a manifest."""
    plain = described(MANIFEST, data)
    return Descriptor(
        media_type=MANIFEST, digest=plain.digest, size=plain.size, artifact_type=artifact_type
    )
