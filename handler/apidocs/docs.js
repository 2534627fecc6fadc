// The API reference: shows the OpenAPI document with Swagger UI, and keeps the section that the
// address names in view while the routes above it are rendered.

const root = document.getElementById("swagger-ui");
const canTry = root.hasAttribute("data-try");

// Swagger UI sanitizes the HTML of descriptions and then assigns it as a string, which the page's policy
// only allows through this function. Strings still never become scripts or URLs of scripts.
window.trustedTypes?.createPolicy("default", { createHTML: (html) => html });

holdTarget();
followColourScheme();

const ui = window.SwaggerUIBundle({
  url: root.dataset.spec,
  domNode: root,
  presets: [window.SwaggerUIBundle.presets.apis],
  plugins: [{ statePlugins: { spec: { wrapActions: { updateJsonSpec: (update) => (doc) => update(adapt(doc)) } } } }],
  layout: "BaseLayout",
  // Swagger UI would take the anchor of a problem for one of its own and replace it.
  deepLinking: location.hash === "" || location.hash.startsWith("#/"),
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // it would send the document to another host
  supportedSubmitMethods: canTry ? ["get", "post", "put", "patch", "delete"] : [],
});

// Swagger UI would open the section of a problem in another tab.
root.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link && document.getElementById(link.hash.slice(1))) {
    event.preventDefault();
    location.hash = link.hash;
  }
});

if (canTry) {
  enableTokens(document.getElementById("token"));
}

// holdTarget scrolls to the section of the address's anchor whenever Swagger UI changes its height,
// until the reader takes over.
function holdTarget() {
  const anchor = location.hash.slice(1);
  const target = anchor && document.getElementById(anchor);
  if (!target || root.contains(target)) {
    return;
  }
  const observer = new ResizeObserver(() => target.scrollIntoView());
  observer.observe(root);
  for (const kind of ["wheel", "touchstart", "pointerdown", "keydown", "hashchange"]) {
    addEventListener(kind, () => observer.disconnect(), { once: true, passive: true });
  }
}

// followColourScheme switches Swagger UI between its light and its dark colours.
function followColourScheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
  dark.addEventListener("change", apply);
  apply();
}

// adapt changes the parsed document where Swagger UI shows less than it says: it does not show the roles
// of a bearer token, it does not resolve references among the parameters of a path, and the codes of a
// response have no links to their sections. Where requests can be sent, it would also send the examples of
// optional parameters.
function adapt(doc) {
  for (const { parameters = [], ...item } of Object.values(doc?.paths ?? {})) {
    for (const operation of Object.values(item)) {
      operation.parameters = [...parameters, ...(operation.parameters ?? [])];
      const roles = (operation.security ?? []).flatMap((scheme) => Object.values(scheme).flat());
      const access = roles.length > 0 ? `For: ${roles.join(", ")}.` : "For all, without a token.";
      operation.description = `${access}\n\n${operation.description ?? ""}`;
      dropExamples(operation.parameters);
    }
  }
  dropExamples(Object.values(doc?.components?.parameters ?? {}));
  for (const item of Object.values(doc?.paths ?? {})) {
    delete item.parameters;
  }
  for (const response of Object.values(doc?.components?.responses ?? {})) {
    const codes = Object.keys(response.content?.["application/problem+json"]?.examples ?? {});
    const links = codes.filter((code) => document.getElementById(code)).map((code) => `[${code}](#${code})`);
    if (links.length > 0) {
      response.description = `${response.description ?? ""}\n\n${links.join(", ")}`;
    }
  }
  return doc;
}

function dropExamples(parameters) {
  for (const parameter of canTry ? parameters : []) {
    if (!parameter.required) {
      delete parameter.example;
      delete parameter.examples;
    }
  }
}

// enableTokens shows the form that gets a development token and uses it for the requests of this page.
function enableTokens(form) {
  const output = form.querySelector("output");
  form.hidden = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { sub, role } = Object.fromEntries(new FormData(form));
    try {
      const response = await fetch("/dev/tokens", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ sub, role }),
      });
      const answer = await response.json();
      if (!response.ok) {
        throw new Error(answer.detail);
      }
      for (const scheme of bearerSchemes()) {
        ui.preauthorizeApiKey(scheme, answer.token);
      }
      output.textContent = `Requests are sent as ${role} ${sub} for one hour.`;
    } catch (error) {
      output.textContent = `No token: ${error.message}`;
    }
  });
}

// bearerSchemes returns the names of the document's security schemes that take a bearer token.
function bearerSchemes() {
  const schemes = ui.specSelectors.specJson().getIn(["components", "securitySchemes"]);
  return schemes ? [...schemes.entries()].filter(([, s]) => s.get("scheme") === "bearer").map(([name]) => name) : [];
}
