"""What is looked for of the caller's settings: hosts and credentials out of addresses."""

import pytest

from stackyard.build.mirrors import CallerSettings
from stackyard.scan.mirror_traces import make_caller

TOKEN = "AbCdEf123456token"


def looked_for(text="", **proxies):
    secrets = {"pip.conf": text.encode()}
    return make_caller(CallerSettings(secrets=secrets, wheel_folders=(), proxies=proxies), own=[])


def test_a_password_with_an_at_sign_is_looked_for_whole_and_is_no_host():
    found = looked_for("index-url=https://user:p@ssw0rd-long@pypi.corp.example/simple?x=a@b\n")
    assert found.hosts == {"pypi.corp.example"}
    assert found.credentials == {"user:p@ssw0rd-long", "p@ssw0rd-long"}
    assert found.names(b"x = 'p@ssw0rd-long'") == {"a password"}
    short = looked_for("https://u:p@ss@h.example/ HTTPS://u:longsecret98@i.example/")
    assert short.hosts == {"h.example", "i.example"}
    assert short.credentials == {"u:longsecret98", "longsecret98"}


def test_a_proxy_without_a_scheme_is_looked_for():
    found = looked_for(
        https_proxy="user:longsecret99@proxy.corp.example:3128",
        HTTP_PROXY="10.1.2.3:3128",
        no_proxy="localhost,.corp.example",
        NO_PROXY="127.0.0.1",
    )
    assert found.hosts == {"proxy.corp.example", "10.1.2.3"}
    assert found.credentials == {"user:longsecret99", "longsecret99"}


@pytest.mark.parametrize("after", ["", ":"])
def test_a_token_in_the_place_of_a_user_name_is_looked_for(after):
    found = looked_for(f"https://{TOKEN}{after}@host.example/ https://fifteen-letters@h.example/")
    assert TOKEN in found.credentials
    assert found.names(TOKEN.encode()) == {"a password"}
    assert found.names(b"fifteen-letters") == set()
    # Registries document these names, and packages have them in their code.
    known = looked_for(
        f"https://{TOKEN}@h/ https://oauth2accesstoken@h/ https://_json_key_base64@h/"
    )
    assert known.credentials == {TOKEN}
