"""Manifests held against the published schemas of their kinds; what these do not know is wrong.

Built-in kinds: kubernetes-validate, strict. JobSet: the models of kubeflow-trainer-api, which are
generated from JobSet's own API; no copy of JobSet's CustomResourceDefinition is kept here. Those
models let unknown fields pass, so they are turned into a JSON schema that does not. They also know
no enumerations: those of JobSet are few and stand below.

The libraries take three seconds to import: functions do that, so that collecting tests does not.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import ValidationError

# The oldest version on which JobSet is supported that the schemas have, and the newest.
VERSIONS = ("1.31", "1.37")
_ENUMERATIONS = {
    ("JobsetV1alpha2SuccessPolicy", "operator"): ["All", "Any"],
    ("JobsetV1alpha2FailurePolicy", "restartStrategy"): ["Recreate", "BlockingRecreate"],
}


def problems(document: dict[str, Any]) -> list[str]:
    """Everything that its schema holds against a manifest, `place: what`; an unknown kind, too."""
    if document.get("apiVersion") == "jobset.x-k8s.io/v1alpha2":
        import jsonschema

        validator = jsonschema.Draft202012Validator(jobset_schema())
        return [_said(error) for error in validator.iter_errors(document)] + _inner(document)
    return _built_in(document)


def _built_in(document: dict[str, Any]) -> list[str]:
    import kubernetes_validate

    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(_said(error))
        except kubernetes_validate.SchemaNotFoundError as error:
            found.append(error.message)
    return found


def _inner(document: dict[str, Any]) -> list[str]:
    """The Jobs that a JobSet makes are held against the schema of Job as well."""
    jobs = document.get("spec", {}).get("replicatedJobs", [])
    made = [{"apiVersion": "batch/v1", "kind": "Job", **job.get("template", {})} for job in jobs]
    return [problem for job in made for problem in _built_in(job)]


def _said(error: ValidationError) -> str:
    return f"{'.'.join(map(str, error.path))}: {error.message}"


@functools.cache
def jobset_schema() -> dict[str, Any]:
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    schema = JobsetV1alpha2JobSet.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    for name, definition in definitions.items():
        # A number or a text: the generator wraps such values in an object of its own.
        if "actual_instance" in definition["properties"]:
            definitions[name] = {"anyOf": definition["properties"]["actual_instance"]["anyOf"]}
    for (name, field), values in _ENUMERATIONS.items():
        definitions[name]["properties"][field] = {"enum": values}
    for definition in (schema, *definitions.values()):
        if "properties" in definition:
            definition["additionalProperties"] = False
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    strict: dict[str, Any] = _without_null(schema)
    return strict


def _without_null(schema: Any) -> Any:
    """The same schema, where what may be left out may not be null as well: errors then say more."""
    if isinstance(schema, list):
        return [_without_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _without_null(part) for name, part in schema.items()}
    either = [part for part in kept.pop("anyOf", []) if part != {"type": "null"}]
    if len(either) == 1:
        return {**kept, **either[0]}
    return {**kept, "anyOf": either} if either else kept
