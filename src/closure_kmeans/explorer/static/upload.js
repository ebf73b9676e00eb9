// A photo that is dropped, chosen or pasted is sent, and becomes the query.
const drop = document.getElementById("drop");
const file = document.getElementById("file");
const state = document.getElementById("state");

async function send(photo) {
  state.textContent = `Reading ${photo.name} …`;
  try {
    const answer = await fetch(`/uploads?name=${encodeURIComponent(photo.name.slice(-100))}`, { method: "POST", body: photo });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    location.assign(`/query?upload=${encodeURIComponent(said.upload)}`);
  } catch (error) {
    state.textContent = `Upload failed: ${error.message}`;
  }
}

file.addEventListener("change", () => file.files[0] && send(file.files[0]));
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files[0]) send(event.dataTransfer.files[0]);
  });
}
addEventListener("paste", (event) => event.clipboardData.files[0] && send(event.clipboardData.files[0]));
