# Fills /opt/venv in a stage of a Containerfile with the files beside this one.
#
#     sh install.sh NAME      the locked requirements NAME.txt and NAME-sdists.txt, with their hashes
#     sh install.sh wheel     the wheel of the project, and nothing that it needs
#
# The same input gives the same bytes: bytecode depends on the source and not on the time, and is
# not compared with the source again, because copies of an image change the times of its files.
set -eu
here=$(dirname "$0")
export PYTHONDONTWRITEBYTECODE=1 # what runs meanwhile would leave bytecode with times in it
python3 -m venv /tmp/pip
python3 -m venv --without-pip /opt/venv
install() {
    /tmp/pip/bin/pip --disable-pip-version-check --python /opt/venv/bin/python install \
        --quiet --no-cache-dir --no-compile --no-deps "$@"
}
# Some packages contain templates that are not valid Python, so errors are ignored.
compile='/opt/venv/bin/python -m compileall -qq -f --invalidation-mode unchecked-hash "$@" || true'

export PYTHONHASHSEED=0 # the order of a set is in the bytecode
if [ "$1" = wheel ]; then
    install "$here"/*.whl
    sh -c "$compile" sh /opt/venv/lib
    rm "$here"/*.whl
else
    install --require-hashes --only-binary :all: -r "$here/$1.txt"
    # What has no wheel is built with the locked backend, which stays out of the image.
    if grep -q == "$here/$1-sdists.txt"; then
        /tmp/pip/bin/pip install --quiet --no-cache-dir --require-hashes -r "$here/backend.txt"
        /tmp/pip/bin/pip wheel --quiet --no-cache-dir --no-deps --require-hashes \
            --no-build-isolation --use-pep517 --wheel-dir /tmp/wheels -r "$here/$1-sdists.txt"
        install /tmp/wheels/*.whl
    fi
    # An image needs no headers, static libraries or tests: 20 MB.
    find /opt/venv/lib/*/site-packages -type d \( -path '*/pyarrow/tests' -o -path '*/pyarrow/src' \
        -o -path '*/pyarrow/include' -o -path '*/dask/*tests' -o -path '*/distributed/*tests' \) \
        -prune -exec rm -rf {} +
    # One process for each package: what one process compiled before changes later references.
    find /opt/venv/lib/*/site-packages -mindepth 1 -maxdepth 1 \( -type d -o -name '*.py' \) \
        -print0 | xargs -0 -n 1 -P "$(nproc)" sh -c "$compile" sh
    # Official Python images come without the bytecode of the standard library.
    standard=$(python3 -c 'import os; print(os.path.dirname(os.__file__))')
    sh -c "$compile" sh -x '/(test|idlelib|lib2to3|site-packages|dist-packages|turtledemo)/' \
        "$standard"
fi

rm -rf /tmp/pip /tmp/wheels /opt/venv/bin/activate* /opt/venv/bin/Activate*
chmod -R a+rX,go-w /opt/venv
find /opt/venv -exec touch --no-dereference --date "@${SOURCE_DATE_EPOCH:-0}" {} +
